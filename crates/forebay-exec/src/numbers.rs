//! Numeric columns of any type, written as elements of one type.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{
    ArrowNativeType, ArrowPrimitiveType, DataType, Float32Type, Float64Type, Int8Type, Int16Type,
    Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use forebay_core::{Error, ErrorKind, Result};
use forebay_plan::Fill;
use half::f16;

/// An element of a stack. A float takes every number and rounds it; an integer takes those that it
/// can hold exactly.
pub trait Element: ArrowNativeType + Default {
    fn of_i64(v: i64) -> Option<Self>;
    fn of_u64(v: u64) -> Option<Self>;
    fn of_f64(v: f64) -> Option<Self>;

    fn of_fill(fill: Fill) -> Option<Self> {
        match fill {
            Fill::Int(i) => Self::of_i64(i),
            Fill::Float(f) => Self::of_f64(f),
        }
    }
}

macro_rules! float {
    ($t:ty, $from:expr) => {
        impl Element for $t {
            fn of_i64(v: i64) -> Option<Self> {
                Some($from(v as f64))
            }
            fn of_u64(v: u64) -> Option<Self> {
                Some($from(v as f64))
            }
            fn of_f64(v: f64) -> Option<Self> {
                Some($from(v))
            }
        }
    };
}
float!(f16, f16::from_f64);
float!(f64, |v| v);

/// Straight from the integer: rounded once, not once to f64 and once more.
impl Element for f32 {
    fn of_i64(v: i64) -> Option<Self> {
        Some(v as f32)
    }
    fn of_u64(v: u64) -> Option<Self> {
        Some(v as f32)
    }
    fn of_f64(v: f64) -> Option<Self> {
        Some(v as f32)
    }
}

macro_rules! integer {
    ($($t:ty)*) => {$(
        impl Element for $t {
            fn of_i64(v: i64) -> Option<Self> {
                Self::try_from(v).ok()
            }
            fn of_u64(v: u64) -> Option<Self> {
                Self::try_from(v).ok()
            }
            fn of_f64(v: f64) -> Option<Self> {
                // Through i128, which holds every integer of every width.
                (v.fract() == 0.0 && v.abs() < 1e30).then_some(v as i128).and_then(|v| Self::try_from(v).ok())
            }
        }
    )*};
}
integer!(i8 i16 i32 i64 u8 u16 u32 u64);

/// A numeric column, read as it is.
pub enum Numbers {
    I8(ArrayRef),
    I16(ArrayRef),
    I32(ArrayRef),
    I64(ArrayRef),
    U8(ArrayRef),
    U16(ArrayRef),
    U32(ArrayRef),
    U64(ArrayRef),
    F32(ArrayRef),
    F64(ArrayRef),
}

impl Numbers {
    /// Any numeric or boolean column.
    pub fn of(array: &ArrayRef) -> Result<Self> {
        let own = Arc::clone(array);
        Ok(match array.data_type() {
            DataType::Int8 => Self::I8(own),
            DataType::Int16 => Self::I16(own),
            DataType::Int32 => Self::I32(own),
            DataType::Int64 => Self::I64(own),
            DataType::UInt8 => Self::U8(own),
            DataType::UInt16 => Self::U16(own),
            DataType::UInt32 => Self::U32(own),
            DataType::UInt64 => Self::U64(own),
            DataType::Float32 => Self::F32(own),
            DataType::Float64 => Self::F64(own),
            DataType::Boolean => Self::U8(converted(array, &DataType::UInt8)?),
            _ => Self::F64(converted(array, &DataType::Float64)?),
        })
    }

    /// Writes rows of the column as column `at` of `out`, whose rows have `width` elements. The first
    /// row whose value does not fit is the error; null rows are left as they are where theirs does not.
    pub fn write<D: Element>(
        &self,
        rows: Range<usize>,
        nulls: Option<&NullBuffer>,
        out: &mut [D],
        (at, width): (usize, usize),
    ) -> std::result::Result<(), usize> {
        let mut to = Target { rows, nulls, out, at, width };
        match self {
            Self::I8(a) => to.write::<Int8Type>(a, |v| D::of_i64(i64::from(v))),
            Self::I16(a) => to.write::<Int16Type>(a, |v| D::of_i64(i64::from(v))),
            Self::I32(a) => to.write::<Int32Type>(a, |v| D::of_i64(i64::from(v))),
            Self::I64(a) => to.write::<Int64Type>(a, D::of_i64),
            Self::U8(a) => to.write::<UInt8Type>(a, |v| D::of_i64(i64::from(v))),
            Self::U16(a) => to.write::<UInt16Type>(a, |v| D::of_i64(i64::from(v))),
            Self::U32(a) => to.write::<UInt32Type>(a, |v| D::of_i64(i64::from(v))),
            Self::U64(a) => to.write::<UInt64Type>(a, D::of_u64),
            Self::F32(a) => to.write::<Float32Type>(a, |v| D::of_f64(f64::from(v))),
            Self::F64(a) => to.write::<Float64Type>(a, D::of_f64),
        }
    }
}

/// Where a column's values go.
struct Target<'a, D> {
    rows: Range<usize>,
    nulls: Option<&'a NullBuffer>,
    out: &'a mut [D],
    at: usize,
    width: usize,
}

impl<D: Element> Target<'_, D> {
    fn write<S: ArrowPrimitiveType>(
        &mut self,
        array: &ArrayRef,
        convert: impl Fn(S::Native) -> Option<D>,
    ) -> std::result::Result<(), usize> {
        let values = &array.as_primitive::<S>().values()[self.rows.clone()];
        let mut done = 0;
        while let Some(misfit) = scatter(
            &values[done..],
            &mut self.out[done * self.width..],
            self.at,
            self.width,
            &convert,
        ) {
            let row = self.rows.start + done + misfit;
            if !self.nulls.is_some_and(|n| n.is_null(row)) {
                return Err(row);
            }
            done += misfit + 1;
        }
        Ok(())
    }
}

/// Writes values as column `at` of rows of `width` elements, up to the first one that cannot be
/// converted, whose place is the result.
///
/// With `step_by` or `enumerate`, or within a larger function, the compiler keeps the loop's variables
/// on the stack, and it takes five times as long.
#[inline(never)]
#[expect(clippy::explicit_counter_loop)]
fn scatter<S: Copy, D>(
    values: &[S],
    out: &mut [D],
    at: usize,
    width: usize,
    convert: impl Fn(S) -> Option<D>,
) -> Option<usize> {
    let mut done = 0;
    for (row, value) in out.chunks_exact_mut(width).zip(values) {
        match convert(*value) {
            Some(value) => row[at] = value,
            None => return Some(done),
        }
        done += 1;
    }
    None
}

fn converted(array: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    cast(array, to).map_err(|e| {
        Error::new(ErrorKind::Schema, format!("cannot convert {} to {to}", array.data_type()))
            .with_source(e)
    })
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;

    use super::*;

    #[test]
    fn integers_are_exact_or_refused() {
        assert_eq!(i64::of_i64((1 << 53) + 1), Some((1 << 53) + 1));
        assert_eq!(u64::of_u64(u64::MAX), Some(u64::MAX));
        assert_eq!(i8::of_i64(300), None);
        assert_eq!(i32::of_f64(2.5), None);
        assert_eq!(i32::of_f64(f64::NAN), None);
        assert_eq!(u8::of_f64(-0.0), Some(0));
        assert_eq!(u64::of_fill(Fill::Float(1e30)), None);
    }

    #[test]
    fn floats_round_once() {
        // Halfway between two f32 but for the last bit, which f64 would lose.
        let v = (1i64 << 60) + (1 << 36) + 1;
        assert_eq!(f32::of_i64(v), Some(((1i64 << 60) + (1 << 37)) as f32));
    }

    #[test]
    fn a_column_is_written_around_nulls_that_do_not_fit() -> Result<()> {
        // Null rows hold whatever the file held: here what i8 cannot.
        let values = vec![5, 1000, -7, 2000, 3000, 9, 4000];
        let valid = vec![true, false, true, false, false, true, false];
        let nulls = NullBuffer::from(valid);
        let array: ArrayRef = Arc::new(Int64Array::new(values.into(), Some(nulls.clone())));
        let numbers = Numbers::of(&array)?;
        let mut out = vec![0i8; 7 * 3];
        assert_eq!(numbers.write(0..7, Some(&nulls), &mut out, (1, 3)), Ok(()));
        let written: Vec<i8> = out.iter().skip(1).step_by(3).copied().collect();
        assert_eq!(written, [5, 0, -7, 0, 0, 9, 0]);
        assert!(out.iter().step_by(3).chain(out.iter().skip(2).step_by(3)).all(|v| *v == 0));

        assert_eq!(numbers.write(2..6, Some(&nulls), &mut out, (0, 3)), Ok(()));
        assert_eq!([out[0], out[9]], [-7, 9]);
        assert_eq!(numbers.write(2..7, None, &mut out, (0, 3)), Err(3), "a row, not a place");
        Ok(())
    }
}
