//! The parts of DataFusion that this crate uses, by one name each, so that a change of the train or
//! of the crates behind it is made in one place.

pub(crate) use datafusion_common::config::ConfigOptions;
pub(crate) use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
pub(crate) use datafusion_common::{
    Column as ColumnName, DFSchema, DataFusionError, Result as DfResult, ScalarValue,
    TableReference,
};
pub(crate) use datafusion_expr::execution_props::ExecutionProps;
pub(crate) use datafusion_expr::physical_planning_context::PhysicalPlanningContext;
pub(crate) use datafusion_expr::planner::{ContextProvider, ExprPlanner};
pub(crate) use datafusion_expr::simplify::SimplifyContext;
pub(crate) use datafusion_expr::{
    AggregateUDF, BinaryExpr as LogicalBinary, ColumnarValue, Expr, HigherOrderUDF, Operator,
    ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TableSource, TypeSignature,
    Volatility, WindowUDF, lit,
};
pub(crate) use datafusion_functions as functions;
pub(crate) use datafusion_functions_aggregate::all_default_aggregate_functions;
pub(crate) use datafusion_functions_nested as functions_nested;
pub(crate) use datafusion_optimizer::simplify_expressions::ExprSimplifier;
pub(crate) use datafusion_physical_expr::expressions as physical;
pub(crate) use datafusion_physical_expr::{PhysicalExpr, ScalarFunctionExpr, create_physical_expr};
pub(crate) use datafusion_sql::planner::{ParserOptions, PlannerContext, SqlToRel};
pub(crate) use datafusion_sql::sqlparser;
