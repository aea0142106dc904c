//! From syntax tree to an expression that can be evaluated: names bound, types coerced, constants
//! folded, then hardened.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use forebay_core::{Error, ErrorKind, Result};

use crate::df::{
    ColumnarValue, DFSchema, DataFusionError, DfResult, ExecutionProps, Expr, ExprSimplifier,
    LogicalBinary, Operator, ParserOptions, PhysicalExpr, PhysicalPlanningContext, PlannerContext,
    ScalarValue, SimplifyContext, SqlToRel, Transformed, TreeNode, TreeNodeRecursion,
    create_physical_expr, lit, physical,
};
use crate::error::{at_spot, sentence};
use crate::functions::FUNCTIONS;
use crate::habits;
use crate::harden::harden;
use crate::parse::parse;

/// How deep an expression may be once chains of AND and OR are balanced. Every level is a stack
/// frame in the planner and at evaluation, and worker threads have stacks of 2 MiB.
const DEPTH: usize = 200;

/// A planned expression.
pub(crate) struct Planned {
    /// The expression in logical form, columns by name.
    pub(crate) logical: Expr,
    /// The expression to evaluate, columns by position in `schema`.
    pub(crate) physical: Arc<dyn PhysicalExpr>,
    /// Positions of the columns it needs, ascending; `physical` counts within these.
    pub(crate) inputs: Vec<usize>,
    /// The fields of those columns.
    pub(crate) schema: SchemaRef,
    /// The field of the result.
    pub(crate) field: FieldRef,
}

/// Plans `sql` over the columns of `schema`. Errors have no place yet.
pub(crate) fn plan(sql: &str, schema: &Schema) -> Result<Planned> {
    let tree = parse(sql, schema)?;
    let fail = |e: DataFusionError| {
        let kind = match e.find_root() {
            DataFusionError::NotImplemented(_) => ErrorKind::Unsupported,
            _ => ErrorKind::InvalidInput,
        };
        let sentence = sentence(&e);
        let message = format!("cannot compile the SQL expression: {sentence}");
        match habits::misread(&sentence, sql) {
            Some((spot, hint)) => at_spot(kind, message, sql, Some(spot)).with_hint(hint),
            None => at_spot(kind, message, sql, None),
        }
    };
    let names = DFSchema::from_unqualified_fields(schema.fields().clone(), Default::default())
        .map_err(fail)?;
    let options = ParserOptions {
        // Column names are what the file says, letter for letter.
        enable_ident_normalization: false,
        // CAST(x AS VARCHAR) gives the plain string type that every reader of Parquet knows.
        map_string_types_to_utf8view: false,
        ..ParserOptions::new()
    };
    let planner = SqlToRel::new_with_options(&*FUNCTIONS, options);
    let expr = planner.sql_to_expr(tree, &names, &mut PlannerContext::new()).map_err(fail)?;
    let expr = unalias(expr).and_then(balance).map_err(fail)?;
    let depth = depth(&expr);
    if depth > DEPTH {
        return Err(Error::invalid(format!(
            "the SQL expression is {depth} levels deep; the limit is {DEPTH}"
        ))
        .with_hint("compute a part of it in a with_column step of its own"));
    }
    let expr = optimise(expr, &names).map_err(fail)?;
    finish(expr, &names).map_err(fail)
}

/// Coerces types, folds constants with checks, simplifies.
fn optimise(expr: Expr, names: &DFSchema) -> DfResult<Expr> {
    let context = SimplifyContext::builder()
        .with_schema(Arc::new(names.clone()))
        .with_config_options(Arc::new(FUNCTIONS.options().clone()))
        .build();
    let simplifier = ExprSimplifier::new(context);
    let expr = simplifier.coerce(expr, names)?;
    let expr = fold_checked(expr)?;
    simplifier.simplify(expr)
}

/// Turns a logical expression over `names` into one to evaluate.
fn finish(logical: Expr, names: &DFSchema) -> DfResult<Planned> {
    let whole = names.as_arrow();
    let expr = create_physical_expr(
        &logical,
        names,
        &ExecutionProps::new(),
        &PhysicalPlanningContext::default(),
    )?;
    let mut used = vec![false; whole.fields().len()];
    expr.apply(|node| {
        if let Some(column) = node.downcast_ref::<physical::Column>()
            && let Some(slot) = used.get_mut(column.index())
        {
            *slot = true;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    let inputs: Vec<usize> = (0..used.len()).filter(|i| used[*i]).collect();
    let schema = Arc::new(whole.project(&inputs)?);
    let expr = expr
        .transform_up(|node| {
            let moved = node.downcast_ref::<physical::Column>().and_then(|c| {
                inputs.binary_search(&c.index()).ok().map(|i| physical::Column::new(c.name(), i))
            });
            Ok(match moved {
                Some(column) => Transformed::yes(Arc::new(column) as Arc<dyn PhysicalExpr>),
                None => Transformed::no(node),
            })
        })?
        .data;
    let physical = harden(expr, &schema)?;
    let dtype = physical.data_type(&schema)?;
    // A computed column is declared nullable: whether one can be null is DataFusion's guess, and a
    // wrong guess would fail in the middle of an epoch. A literal's answer is no guess.
    let nullable = physical.downcast_ref::<physical::Literal>().is_none_or(|l| l.value().is_null());
    let field = Arc::new(Field::new("", dtype, nullable));
    Ok(Planned { logical, physical, inputs, schema, field })
}

/// Removes the aliases that the SQL planner leaves where a function is called by another name.
fn unalias(expr: Expr) -> DfResult<Expr> {
    expr.transform_up(|e| {
        Ok(match e {
            Expr::Alias(alias) => Transformed::yes(*alias.expr),
            other => Transformed::no(other),
        })
    })
    .map(|t| t.data)
}

/// Makes chains of ANDs or ORs, which the parser nests to the left, as shallow as they can be. The
/// operands keep their order, and both operators are associative in three-valued logic.
fn balance(expr: Expr) -> DfResult<Expr> {
    let op = match &expr {
        Expr::BinaryExpr(LogicalBinary { op: op @ (Operator::And | Operator::Or), .. }) => *op,
        _ => return expr.map_children(|e| Ok(Transformed::yes(balance(e)?))).map(|t| t.data),
    };
    let mut operands = Vec::new();
    let mut todo = vec![expr];
    while let Some(next) = todo.pop() {
        match next {
            Expr::BinaryExpr(b) if b.op == op => {
                todo.push(*b.right);
                todo.push(*b.left);
            }
            other => operands.push(balance(other)?),
        }
    }
    while operands.len() > 1 {
        let mut halved = Vec::with_capacity(operands.len().div_ceil(2));
        let mut rest = operands.into_iter();
        while let Some(left) = rest.next() {
            halved.push(match rest.next() {
                Some(right) => {
                    Expr::BinaryExpr(LogicalBinary::new(Box::new(left), op, Box::new(right)))
                }
                None => left,
            });
        }
        operands = halved;
    }
    Ok(operands.pop().unwrap_or_else(|| lit(op == Operator::And)))
}

/// The depth of an expression, found without recursion.
fn depth(expr: &Expr) -> usize {
    let mut deepest = 0;
    let mut todo = vec![(expr, 1)];
    while let Some((node, level)) = todo.pop() {
        deepest = deepest.max(level);
        // The closure never fails.
        let _ = node.apply_children(|child| {
            todo.push((child, level + 1));
            Ok(TreeNodeRecursion::Continue)
        });
    }
    deepest
}

/// Folds constant integer arithmetic with checks. DataFusion's own folding wraps around, so that
/// `9223372036854775807 + 1` would silently become the least integer.
fn fold_checked(expr: Expr) -> DfResult<Expr> {
    let literal = |e: &Expr| matches!(e, Expr::Literal(..));
    expr.transform_up(|e| {
        let foldable = match &e {
            Expr::BinaryExpr(b) => {
                matches!(b.op, Operator::Plus | Operator::Minus | Operator::Multiply)
                    && literal(&b.left)
                    && literal(&b.right)
            }
            Expr::Negative(inner) => literal(inner),
            Expr::Cast(cast) => literal(&cast.expr),
            _ => false,
        };
        if !foldable {
            return Ok(Transformed::no(e));
        }
        match constant(&e) {
            Ok(value) => Ok(Transformed::yes(Expr::Literal(value, None))),
            // A cast that fails may sit in a branch that is never taken; it fails when it runs.
            Err(_) if matches!(e, Expr::Cast(_)) => Ok(Transformed::no(e)),
            Err(error) => Err(error),
        }
    })
    .map(|t| t.data)
}

/// The value of an expression without columns.
fn constant(expr: &Expr) -> DfResult<ScalarValue> {
    let planned = finish(expr.clone(), &DFSchema::empty())?;
    match planned.physical.evaluate(&one_row())? {
        ColumnarValue::Scalar(value) => Ok(value),
        ColumnarValue::Array(array) => ScalarValue::try_from_array(&array, 0),
    }
}

/// A batch of one row and no columns.
fn one_row() -> RecordBatch {
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    // An empty schema and no arrays always fit each other.
    RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &options)
        .unwrap_or_else(|_| RecordBatch::new_empty(Arc::new(Schema::empty())))
}

/// Says what a type is, for people.
pub(crate) fn type_name(dtype: &DataType) -> String {
    dtype.to_string()
}
