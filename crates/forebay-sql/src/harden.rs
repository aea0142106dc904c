//! The last pass over a compiled expression: what DataFusion leaves open is settled here.
//!
//! * Integer arithmetic that overflows is an error, not a wrapped number.
//! * Floats compare as [`crate::float`] says.
//! * AND and OR guard as [`crate::guard`] says.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};

use crate::df::physical::{
    BinaryExpr, CaseExpr, CastExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr,
    Literal, NegativeExpr, NotExpr,
};
use crate::df::{
    DfResult, Operator, PhysicalExpr, ScalarFunctionExpr, ScalarValue, Transformed, TreeNode,
};
use crate::float::FloatCompare;
use crate::guard::Guarded;

/// Applies all rules. The result has the same type and, where it gives a value, DataFusion's value
/// but for the rules above.
pub(crate) fn harden(
    expr: Arc<dyn PhysicalExpr>,
    schema: &Schema,
) -> DfResult<Arc<dyn PhysicalExpr>> {
    expr.transform_up(|node| {
        let new = rewrite(&node, schema)?;
        Ok(match new {
            Some(new) => Transformed::yes(new),
            None => Transformed::no(node),
        })
    })
    .map(|t| t.data)
}

fn rewrite(
    node: &Arc<dyn PhysicalExpr>,
    schema: &Schema,
) -> DfResult<Option<Arc<dyn PhysicalExpr>>> {
    // The nodes of a lambda's body have columns of their own, whose types this schema cannot tell;
    // they keep DataFusion's behaviour.
    let float =
        |e: &Arc<dyn PhysicalExpr>| e.data_type(schema).is_ok_and(|t| FloatCompare::is_float(&t));
    if let Some(binary) = node.downcast_ref::<BinaryExpr>() {
        let (left, op, right) = (binary.left(), *binary.op(), binary.right());
        return Ok(match op {
            Operator::Plus | Operator::Minus | Operator::Multiply => {
                Some(Arc::new(binary.clone().with_fail_on_overflow(true)))
            }
            Operator::And | Operator::Or if can_fail(right, schema) => Some(Arc::new(
                Guarded::new(Arc::clone(left), Arc::clone(right), op == Operator::And),
            )),
            op if FloatCompare::handles(op) && float(left) && float(right) => {
                Some(Arc::new(FloatCompare::new(Arc::clone(left), op, Arc::clone(right))))
            }
            _ => None,
        });
    }
    if let Some(negative) = node.downcast_ref::<NegativeExpr>() {
        // DataFusion wraps -(-128) around; 0 - x checks.
        let arg = negative.arg();
        let Ok(dtype) = arg.data_type(schema) else { return Ok(None) };
        if !dtype.is_signed_integer() {
            return Ok(None);
        }
        let zero: Arc<dyn PhysicalExpr> = Arc::new(Literal::new(ScalarValue::new_zero(&dtype)?));
        let checked =
            BinaryExpr::new(zero, Operator::Minus, Arc::clone(arg)).with_fail_on_overflow(true);
        return Ok(Some(Arc::new(checked)));
    }
    if let Some(list) = node.downcast_ref::<InListExpr>() {
        if !float(list.expr()) {
            return Ok(None);
        }
        let tests = list
            .list()
            .iter()
            .map(|v| {
                Arc::new(FloatCompare::new(Arc::clone(list.expr()), Operator::Eq, Arc::clone(v)))
                    as Arc<dyn PhysicalExpr>
            })
            .collect();
        return Ok(any_of(tests)
            .map(|any| if list.negated() { Arc::new(NotExpr::new(any)) as _ } else { any }));
    }
    if let Some(case) = node.downcast_ref::<CaseExpr>() {
        let Some(subject) = case.expr().filter(|e| float(e)) else { return Ok(None) };
        let branches = case
            .when_then_expr()
            .iter()
            .map(|(when, then)| {
                let test: Arc<dyn PhysicalExpr> = Arc::new(FloatCompare::new(
                    Arc::clone(subject),
                    Operator::Eq,
                    Arc::clone(when),
                ));
                (test, Arc::clone(then))
            })
            .collect();
        return Ok(Some(Arc::new(CaseExpr::try_new(None, branches, case.else_expr().cloned())?)));
    }
    if let Some(call) = node.downcast_ref::<ScalarFunctionExpr>()
        && call.name() == "nullif"
        && let [value, other] = call.args()
        && float(value)
        && float(other)
    {
        let test: Arc<dyn PhysicalExpr> =
            Arc::new(FloatCompare::new(Arc::clone(value), Operator::Eq, Arc::clone(other)));
        let null: Arc<dyn PhysicalExpr> =
            Arc::new(Literal::new(ScalarValue::try_from(&value.data_type(schema)?)?));
        return Ok(Some(Arc::new(CaseExpr::try_new(
            None,
            vec![(test, null)],
            Some(Arc::clone(value)),
        )?)));
    }
    Ok(None)
}

/// OR over all, as a balanced tree: evaluation recurses, and a list may be long.
fn any_of(mut tests: Vec<Arc<dyn PhysicalExpr>>) -> Option<Arc<dyn PhysicalExpr>> {
    while tests.len() > 1 {
        tests = tests
            .chunks(2)
            .map(|pair| match pair {
                [a, b] => Arc::new(BinaryExpr::new(Arc::clone(a), Operator::Or, Arc::clone(b)))
                    as Arc<dyn PhysicalExpr>,
                rest => Arc::clone(&rest[0]),
            })
            .collect();
    }
    tests.pop()
}

/// Whether evaluating the expression may end in an error. In doubt: yes.
pub(crate) fn can_fail(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    let itself = if expr.is::<Column>()
        || expr.is::<Literal>()
        || expr.is::<NotExpr>()
        || expr.is::<IsNullExpr>()
        || expr.is::<IsNotNullExpr>()
        || expr.is::<InListExpr>()
        || expr.is::<LikeExpr>()
        || expr.is::<CaseExpr>()
        || expr.is::<FloatCompare>()
        || expr.is::<Guarded>()
    {
        false
    } else if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
        match binary.op() {
            Operator::And | Operator::Or => false,
            op if FloatCompare::handles(*op) => false,
            Operator::Plus | Operator::Minus | Operator::Multiply | Operator::Divide => {
                !binary.left().data_type(schema).is_ok_and(|t| t.is_floating())
            }
            _ => true,
        }
    } else if let Some(cast) = expr.downcast_ref::<CastExpr>() {
        !cast.expr().data_type(schema).is_ok_and(|from| widens(&from, cast.cast_type()))
    } else {
        true
    };
    itself || expr.children().into_iter().any(|child| can_fail(child, schema))
}

/// Casts that hold for every value.
fn widens(from: &DataType, to: &DataType) -> bool {
    let text =
        |t: &DataType| matches!(t, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    from == to
        || (text(from) && text(to))
        || (from.is_integer() && to.is_floating() && *to != DataType::Float16)
        || (from.is_floating() && *to == DataType::Float64)
        || match (from.primitive_width(), to.primitive_width()) {
            (Some(a), Some(b)) => {
                (from.is_signed_integer() && to.is_signed_integer() && a <= b)
                    || (from.is_unsigned_integer() && to.is_unsigned_integer() && a <= b)
                    || (from.is_unsigned_integer() && to.is_signed_integer() && a < b)
            }
            _ => false,
        }
}
