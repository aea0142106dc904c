//! Comparison of floating-point numbers that is the same everywhere.
//!
//! arrow compares floats by their bits (IEEE totalOrder): -0.0 differs from 0.0, and a NaN with its
//! sign bit set is less than everything. The sign of a NaN that arithmetic makes differs between
//! processors (0.0/0.0 is negative on x86-64 and positive on AArch64), so a filter would keep other
//! rows on other machines. Here zeros are equal, and NaN equals NaN and is greater than every
//! number, whatever its bits: the rule of PostgreSQL, DuckDB and Spark.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, PrimitiveArray};
use arrow::buffer::{BooleanBuffer, Buffer};
use arrow::datatypes::{DataType, Float16Type, Float32Type, Float64Type, Schema};
use arrow::record_batch::RecordBatch;

use crate::df::{ColumnarValue, DataFusionError, DfResult, Operator, PhysicalExpr};

/// How many comparisons go into one word of the result.
const WORD: usize = 64;

/// `left op right` for floats.
#[derive(Debug, Clone)]
pub(crate) struct FloatCompare {
    left: Arc<dyn PhysicalExpr>,
    op: Operator,
    right: Arc<dyn PhysicalExpr>,
}

impl FloatCompare {
    /// Whether an operator is one of the comparisons handled here.
    pub(crate) fn handles(op: Operator) -> bool {
        use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
        matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
    }

    /// Whether a type is a float, plain or in a dictionary.
    pub(crate) fn is_float(dtype: &DataType) -> bool {
        match dtype {
            DataType::Dictionary(_, value) => value.is_floating(),
            other => other.is_floating(),
        }
    }

    pub(crate) fn new(
        left: Arc<dyn PhysicalExpr>,
        op: Operator,
        right: Arc<dyn PhysicalExpr>,
    ) -> Self {
        Self { left, op, right }
    }
}

impl fmt::Display for FloatCompare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.left, self.op, self.right)
    }
}

// Written out: a derive would want to move out of the `Arc<dyn PhysicalExpr>`.
impl PartialEq for FloatCompare {
    fn eq(&self, other: &Self) -> bool {
        self.op == other.op && self.left.eq(&other.left) && self.right.eq(&other.right)
    }
}

impl Eq for FloatCompare {}

impl Hash for FloatCompare {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.left.hash(state);
        self.op.hash(state);
        self.right.hash(state);
    }
}

impl PhysicalExpr for FloatCompare {
    fn data_type(&self, _schema: &Schema) -> DfResult<DataType> {
        Ok(DataType::Boolean)
    }

    fn nullable(&self, schema: &Schema) -> DfResult<bool> {
        Ok(self.left.nullable(schema)? || self.right.nullable(schema)?)
    }

    fn evaluate(&self, batch: &RecordBatch) -> DfResult<ColumnarValue> {
        let rows = batch.num_rows();
        let left = self.left.evaluate(batch)?;
        let right = self.right.evaluate(batch)?;
        let (array, scalar, op) = match (left, right) {
            (ColumnarValue::Array(l), ColumnarValue::Array(r)) => {
                return Ok(ColumnarValue::Array(Arc::new(arrays(&l, &r, self.op)?)));
            }
            (ColumnarValue::Array(l), ColumnarValue::Scalar(r)) => (l, r, self.op),
            (ColumnarValue::Scalar(l), ColumnarValue::Array(r)) => (r, l, swap(self.op)),
            (ColumnarValue::Scalar(l), ColumnarValue::Scalar(r)) => {
                (l.to_array_of_size(rows)?, r, self.op)
            }
        };
        let scalar = scalar.to_array()?;
        Ok(ColumnarValue::Array(Arc::new(with_scalar(&array, &scalar, op)?)))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.left, &self.right]
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> DfResult<Arc<dyn PhysicalExpr>> {
        match (children.pop(), children.pop()) {
            (Some(right), Some(left)) => Ok(Arc::new(Self::new(left, self.op, right))),
            _ => Err(DataFusionError::Internal("a comparison has two sides".into())),
        }
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::explain::side(&self.left, f)?;
        write!(f, " {} ", self.op)?;
        crate::explain::side(&self.right, f)
    }
}

fn swap(op: Operator) -> Operator {
    op.swap().unwrap_or(op)
}

fn plain(array: &ArrayRef) -> DfResult<ArrayRef> {
    match array.data_type() {
        DataType::Dictionary(_, value) => Ok(arrow::compute::cast(array, value)?),
        _ => Ok(Arc::clone(array)),
    }
}

fn wrong_type(dtype: &DataType) -> DataFusionError {
    DataFusionError::Internal(format!("comparison of floats on {dtype}"))
}

fn with_scalar(array: &ArrayRef, scalar: &ArrayRef, op: Operator) -> DfResult<BooleanArray> {
    let (array, scalar) = (plain(array)?, plain(scalar)?);
    if scalar.is_null(0) {
        return Ok(match op {
            Operator::IsDistinctFrom => arrow::compute::is_not_null(&array)?,
            Operator::IsNotDistinctFrom => arrow::compute::is_null(&array)?,
            _ => BooleanArray::new_null(array.len()),
        });
    }
    match (array.data_type(), scalar.data_type()) {
        (DataType::Float64, DataType::Float64) => Ok(scalar_kernel(
            array.as_primitive::<Float64Type>(),
            scalar.as_primitive::<Float64Type>().value(0),
            op,
        )),
        (DataType::Float32, DataType::Float32) => Ok(scalar_kernel(
            array.as_primitive::<Float32Type>(),
            scalar.as_primitive::<Float32Type>().value(0),
            op,
        )),
        (DataType::Float16, DataType::Float16) => Ok(scalar_kernel(
            array.as_primitive::<Float16Type>(),
            scalar.as_primitive::<Float16Type>().value(0),
            op,
        )),
        (other, _) => Err(wrong_type(other)),
    }
}

fn arrays(left: &ArrayRef, right: &ArrayRef, op: Operator) -> DfResult<BooleanArray> {
    let (left, right) = (plain(left)?, plain(right)?);
    match (left.data_type(), right.data_type()) {
        (DataType::Float64, DataType::Float64) => Ok(array_kernel(
            left.as_primitive::<Float64Type>(),
            right.as_primitive::<Float64Type>(),
            op,
        )),
        (DataType::Float32, DataType::Float32) => Ok(array_kernel(
            left.as_primitive::<Float32Type>(),
            right.as_primitive::<Float32Type>(),
            op,
        )),
        (DataType::Float16, DataType::Float16) => Ok(array_kernel(
            left.as_primitive::<Float16Type>(),
            right.as_primitive::<Float16Type>(),
            op,
        )),
        (other, _) => Err(wrong_type(other)),
    }
}

/// One bit per value. The loop over a chunk has no branch, so the compiler turns it into vectors.
fn pack<V: Copy>(values: &[V], test: impl Fn(V) -> bool) -> BooleanBuffer {
    let words: Vec<u64> = values
        .chunks(WORD)
        .map(|chunk| {
            chunk
                .iter()
                .enumerate()
                .fold(0u64, |word, (i, v)| word | (u64::from(test(*v)) << i))
                .to_le()
        })
        .collect();
    BooleanBuffer::new(Buffer::from_vec(words), 0, values.len())
}

/// One bit per pair of values.
fn pack_pairs<V: Copy>(left: &[V], right: &[V], test: impl Fn(V, V) -> bool) -> BooleanBuffer {
    let words: Vec<u64> = left
        .chunks(WORD)
        .zip(right.chunks(WORD))
        .map(|(l, r)| {
            l.iter()
                .zip(r)
                .enumerate()
                .fold(0u64, |word, (i, (a, b))| word | (u64::from(test(*a, *b)) << i))
                .to_le()
        })
        .collect();
    BooleanBuffer::new(Buffer::from_vec(words), 0, left.len())
}

#[expect(
    clippy::neg_cmp_op_on_partial_ord,
    reason = "not(a <= b) is true where a is NaN, which is the point"
)]
#[expect(clippy::eq_op, reason = "only NaN differs from itself")]
fn scalar_kernel<T>(array: &PrimitiveArray<T>, b: T::Native, op: Operator) -> BooleanArray
where
    T: ArrowPrimitiveType,
    T::Native: PartialOrd,
{
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq};
    let v: &[T::Native] = array.values();
    let bits = if b != b {
        match op {
            Eq | GtEq | IsNotDistinctFrom => pack(v, |a| a != a),
            Gt => BooleanBuffer::new_unset(v.len()),
            LtEq => BooleanBuffer::new_set(v.len()),
            _ => pack(v, |a| a == a),
        }
    } else {
        match op {
            Eq | IsNotDistinctFrom => pack(v, |a| a == b),
            Gt => pack(v, |a| !(a <= b)),
            GtEq => pack(v, |a| !(a < b)),
            Lt => pack(v, |a| a < b),
            LtEq => pack(v, |a| a <= b),
            _ => pack(v, |a| a != b),
        }
    };
    match op {
        // Against a value, a null is distinct.
        IsDistinctFrom => match array.nulls() {
            Some(nulls) => BooleanArray::new(&bits | &!nulls.inner(), None),
            None => BooleanArray::new(bits, None),
        },
        IsNotDistinctFrom => match array.nulls() {
            Some(nulls) => BooleanArray::new(&bits & nulls.inner(), None),
            None => BooleanArray::new(bits, None),
        },
        _ => BooleanArray::new(bits, array.nulls().cloned()),
    }
}

#[expect(clippy::eq_op, reason = "only NaN differs from itself")]
fn array_kernel<T>(
    left: &PrimitiveArray<T>,
    right: &PrimitiveArray<T>,
    op: Operator,
) -> BooleanArray
where
    T: ArrowPrimitiveType,
    T::Native: PartialOrd,
{
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq};
    let (l, r): (&[T::Native], &[T::Native]) = (left.values(), right.values());
    let gt = |a: T::Native, b: T::Native| (a > b) | ((a != a) & (b == b));
    let eq = |a: T::Native, b: T::Native| (a == b) | ((a != a) & (b != b));
    let bits = match op {
        Eq | IsNotDistinctFrom => pack_pairs(l, r, eq),
        Gt => pack_pairs(l, r, gt),
        LtEq => pack_pairs(l, r, |a, b| !gt(a, b)),
        Lt => pack_pairs(l, r, |a, b| gt(b, a)),
        GtEq => pack_pairs(l, r, |a, b| !gt(b, a)),
        _ => pack_pairs(l, r, |a, b| !eq(a, b)),
    };
    if !matches!(op, IsDistinctFrom | IsNotDistinctFrom) {
        let nulls = arrow::buffer::NullBuffer::union(left.nulls(), right.nulls());
        return BooleanArray::new(bits, nulls);
    }
    let negate = op == IsDistinctFrom;
    let distinct =
        BooleanBuffer::collect_bool(l.len(), |i| match (left.is_null(i), right.is_null(i)) {
            (true, true) => !negate,
            (false, false) => bits.value(i),
            _ => negate,
        });
    BooleanArray::new(distinct, None)
}

/// Gives every NaN the same bits, so that a computed column does not depend on the processor.
pub(crate) fn canonical_nans(array: ArrayRef) -> ArrayRef {
    fn fix<T: ArrowPrimitiveType>(
        array: &ArrayRef,
        nan: T::Native,
        is_nan: impl Fn(T::Native) -> bool,
    ) -> Option<ArrayRef> {
        let primitive = array.as_primitive::<T>();
        if !primitive.values().iter().fold(false, |any, v| any | is_nan(*v)) {
            return None;
        }
        Some(Arc::new(primitive.unary::<_, T>(|v| if is_nan(v) { nan } else { v })))
    }
    let fixed = match array.data_type() {
        DataType::Float64 => fix::<Float64Type>(&array, f64::NAN, f64::is_nan),
        DataType::Float32 => fix::<Float32Type>(&array, f32::NAN, f32::is_nan),
        DataType::Float16 => fix::<Float16Type>(&array, half::f16::NAN, half::f16::is_nan),
        _ => None,
    };
    fixed.unwrap_or(array)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use arrow::array::Float64Array;
    use std::cmp::Ordering;

    /// The order in plain words: null is unknown, NaN is the greatest, zeros are equal.
    fn order(a: f64, b: f64) -> Ordering {
        match (a.is_nan(), b.is_nan()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => a.partial_cmp(&b).unwrap(),
        }
    }

    fn expected(a: Option<f64>, b: Option<f64>, op: Operator) -> Option<bool> {
        let (Some(x), Some(y)) = (a, b) else {
            return match op {
                Operator::IsDistinctFrom => Some(a.is_some() != b.is_some()),
                Operator::IsNotDistinctFrom => Some(a.is_some() == b.is_some()),
                _ => None,
            };
        };
        let o = order(x, y);
        Some(match op {
            Operator::Eq | Operator::IsNotDistinctFrom => o.is_eq(),
            Operator::NotEq | Operator::IsDistinctFrom => o.is_ne(),
            Operator::Lt => o.is_lt(),
            Operator::LtEq => o.is_le(),
            Operator::Gt => o.is_gt(),
            _ => o.is_ge(),
        })
    }

    const OPS: [Operator; 8] = [
        Operator::Eq,
        Operator::NotEq,
        Operator::Lt,
        Operator::LtEq,
        Operator::Gt,
        Operator::GtEq,
        Operator::IsDistinctFrom,
        Operator::IsNotDistinctFrom,
    ];

    #[test]
    fn all_pairs_of_odd_values() {
        let odd = [
            None,
            Some(f64::NAN),
            Some(-f64::NAN),
            Some(0.0),
            Some(-0.0),
            Some(1.5),
            Some(-1.5),
            Some(f64::INFINITY),
            Some(f64::NEG_INFINITY),
        ];
        // More than one word of pairs, so that the packing is tested too.
        let pairs: Vec<(Option<f64>, Option<f64>)> =
            odd.iter().flat_map(|a| odd.iter().map(|b| (*a, *b))).collect();
        let left: ArrayRef = Arc::new(pairs.iter().map(|p| p.0).collect::<Float64Array>());
        let right: ArrayRef = Arc::new(pairs.iter().map(|p| p.1).collect::<Float64Array>());
        for op in OPS {
            let got = arrays(&left, &right, op).unwrap();
            for (i, (a, b)) in pairs.iter().enumerate() {
                let value = got.is_valid(i).then(|| got.value(i));
                assert_eq!(value, expected(*a, *b, op), "{a:?} {op} {b:?}");
            }
            for b in odd {
                let scalar: ArrayRef = Arc::new(Float64Array::from(vec![b]));
                let got = with_scalar(&left, &scalar, op).unwrap();
                for (i, (a, _)) in pairs.iter().enumerate() {
                    let value = got.is_valid(i).then(|| got.value(i));
                    assert_eq!(value, expected(*a, b, op), "{a:?} {op} scalar {b:?}");
                }
            }
        }
    }

    #[test]
    fn nans_get_one_pattern() {
        let array: ArrayRef = Arc::new(Float64Array::from(vec![Some(-f64::NAN), None, Some(1.0)]));
        let fixed = canonical_nans(array);
        let fixed = fixed.as_primitive::<Float64Type>();
        assert_eq!(fixed.value(0).to_bits(), f64::NAN.to_bits());
        assert!(fixed.is_null(1));
        assert_eq!(fixed.value(2), 1.0);
    }
}
