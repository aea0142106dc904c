//! AND and OR whose right side is evaluated only where the left side leaves the answer open.
//!
//! `x <> 0 AND 10 / x > 2` must not fail on the rows where x is 0. DataFusion skips the right side
//! only when most of a batch allows it, so that the same row would fail in one batch and pass in
//! another. Where the right side can fail, this node is used instead and the left side always
//! guards.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray};
use arrow::compute::{and_kleene, or_kleene};
use arrow::datatypes::{DataType, Schema};
use arrow::record_batch::RecordBatch;

use crate::df::{ColumnarValue, DataFusionError, DfResult, PhysicalExpr};

/// `left AND right` or `left OR right`, strictly from left to right.
#[derive(Debug, Clone)]
pub(crate) struct Guarded {
    left: Arc<dyn PhysicalExpr>,
    right: Arc<dyn PhysicalExpr>,
    /// AND, else OR.
    and: bool,
}

impl Guarded {
    pub(crate) fn new(
        left: Arc<dyn PhysicalExpr>,
        right: Arc<dyn PhysicalExpr>,
        and: bool,
    ) -> Self {
        Self { left, right, and }
    }

    fn word(&self) -> &'static str {
        if self.and { "AND" } else { "OR" }
    }
}

impl fmt::Display for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}) {} ({})", self.left, self.word(), self.right)
    }
}

impl PartialEq for Guarded {
    fn eq(&self, other: &Self) -> bool {
        self.and == other.and && self.left.eq(&other.left) && self.right.eq(&other.right)
    }
}

impl Eq for Guarded {}

impl Hash for Guarded {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.left.hash(state);
        self.right.hash(state);
        self.and.hash(state);
    }
}

impl PhysicalExpr for Guarded {
    fn data_type(&self, _schema: &Schema) -> DfResult<DataType> {
        Ok(DataType::Boolean)
    }

    fn nullable(&self, schema: &Schema) -> DfResult<bool> {
        Ok(self.left.nullable(schema)? || self.right.nullable(schema)?)
    }

    fn evaluate(&self, batch: &RecordBatch) -> DfResult<ColumnarValue> {
        let rows = batch.num_rows();
        let left: ArrayRef = self.left.evaluate(batch)?.into_array(rows)?;
        let left = left.as_boolean();
        // Open: rows where AND has not seen false, or OR has not seen true.
        let settled = if self.and { !left.values() } else { left.values().clone() };
        let settled = match left.nulls() {
            Some(nulls) => &settled & nulls.inner(),
            None => settled,
        };
        let open = BooleanArray::new(!&settled, None);
        let right = match open.true_count() {
            0 => return Ok(ColumnarValue::Array(Arc::new(left.clone()))),
            n if n == rows => self.right.evaluate(batch)?,
            // The rows in between come back as null, which neither AND with false nor OR with true
            // lets through.
            _ => self.right.evaluate_selection(batch, &open)?,
        };
        let right = right.into_array(rows)?;
        let right = right.as_boolean();
        let both = if self.and { and_kleene(left, right) } else { or_kleene(left, right) }?;
        Ok(ColumnarValue::Array(Arc::new(both)))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.left, &self.right]
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> DfResult<Arc<dyn PhysicalExpr>> {
        match (children.pop(), children.pop()) {
            (Some(right), Some(left)) => Ok(Arc::new(Self::new(left, right, self.and))),
            _ => Err(DataFusionError::Internal("AND and OR have two sides".into())),
        }
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::explain::side(&self.left, f)?;
        write!(f, " {} ", self.word())?;
        crate::explain::side(&self.right, f)
    }
}
