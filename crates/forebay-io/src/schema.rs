//! One schema over many files, and what it takes to read each file as it.
//!
//! Columns are matched by name. A column that some files lack is null there; nullability is the
//! union. Types must be the same, or have a common type that holds every value of both exactly and
//! means the same: wider integers of one signedness (or unsigned into a wider signed), wider floats,
//! strings and binaries of any offset width, decimals of one scale, dictionaries and their values,
//! and the same within lists and structs. Integers do not become floats, and timestamps keep their
//! unit and zone: what cannot be undone is the user's decision.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, LargeListArray, ListArray, MapArray, StructArray,
    new_null_array,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use arrow::error::ArrowError;
use forebay_core::{Error, ErrorKind, Result};

/// The schema that holds every file's, in order of first appearance.
pub(crate) fn unify(files: &[(Arc<str>, SchemaRef)]) -> Result<SchemaRef> {
    let Some((first_uri, first)) = files.first() else { return Ok(Arc::new(Schema::empty())) };
    check_names(first_uri, first)?;
    let mut fields: Vec<(FieldRef, Arc<str>)> =
        first.fields().iter().map(|f| (Arc::clone(f), Arc::clone(first_uri))).collect();
    let mut metadata = first.metadata().clone();
    let mut last = first;
    for (uri, schema) in &files[1..] {
        // Most datasets repeat one schema; the lister shares equal ones.
        if Arc::ptr_eq(schema, last) {
            continue;
        }
        last = schema;
        check_names(uri, schema)?;
        // What differs between files says nothing about the dataset (pandas keeps row counts there).
        metadata.retain(|k, v| schema.metadata().get(k) == Some(v));
        for (field, _) in &mut fields {
            if !field.is_nullable() && schema.column_with_name(field.name()).is_none() {
                *field = Arc::new(field.as_ref().clone().with_nullable(true));
            }
        }
        for field in schema.fields() {
            match fields.iter_mut().find(|(f, _)| f.name() == field.name()) {
                None => {
                    let field = Arc::new(field.as_ref().clone().with_nullable(true));
                    fields.push((field, Arc::clone(uri)));
                }
                Some((have, from)) => {
                    if have == field {
                        continue;
                    }
                    let Some(merged) = unify_field(have, field) else {
                        return Err(mismatch(
                            field.name(),
                            have.data_type(),
                            from,
                            field.data_type(),
                            uri,
                        ));
                    };
                    *have = Arc::new(merged);
                }
            }
        }
    }
    let fields: Fields = fields.into_iter().map(|(f, _)| f).collect();
    if metadata == *first.metadata() && fields == *first.fields() {
        return Ok(Arc::clone(first));
    }
    Ok(Arc::new(Schema::new_with_metadata(fields, metadata)))
}

/// The error of a column whose type differs between two files.
fn mismatch(column: &str, a: &DataType, file_a: &str, b: &DataType, file_b: &str) -> Error {
    Error::new(
        ErrorKind::Schema,
        format!("column {column:?} is {a} in {file_a} and {b} in {file_b}"),
    )
    .in_column(column)
    .with_hint("write one of them again with the other's type, or read them as two datasets")
}

fn check_names(uri: &Arc<str>, schema: &Schema) -> Result<()> {
    let mut seen = std::collections::HashSet::new();
    for field in schema.fields() {
        if !seen.insert(field.name()) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{} columns have the name {:?}",
                    schema.fields().iter().filter(|f| f.name() == field.name()).count(),
                    field.name()
                ),
            )
            .in_file(Arc::clone(uri))
            .with_hint("columns are found by name; write the file again with names of their own"));
        }
    }
    Ok(())
}

/// The field that holds the values of both, or none.
fn unify_field(a: &Field, b: &Field) -> Option<Field> {
    let data_type = unify_type(a.data_type(), b.data_type())?;
    let mut metadata = a.metadata().clone();
    for (key, value) in b.metadata() {
        metadata.entry(key.clone()).or_insert_with(|| value.clone());
    }
    Some(
        Field::new(a.name(), data_type, a.is_nullable() || b.is_nullable()).with_metadata(metadata),
    )
}

fn int_bits(t: &DataType) -> Option<(bool, u8)> {
    use DataType as T;
    Some(match t {
        T::Int8 => (true, 8),
        T::Int16 => (true, 16),
        T::Int32 => (true, 32),
        T::Int64 => (true, 64),
        T::UInt8 => (false, 8),
        T::UInt16 => (false, 16),
        T::UInt32 => (false, 32),
        T::UInt64 => (false, 64),
        _ => return None,
    })
}

fn int_of(signed: bool, bits: u8) -> Option<DataType> {
    use DataType as T;
    Some(match (signed, bits) {
        (true, 8) => T::Int8,
        (true, 16) => T::Int16,
        (true, 32) => T::Int32,
        (true, 64) => T::Int64,
        (false, 8) => T::UInt8,
        (false, 16) => T::UInt16,
        (false, 32) => T::UInt32,
        (false, 64) => T::UInt64,
        _ => return None,
    })
}

/// The type that holds the values of both exactly, or none.
pub(crate) fn unify_type(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType as T;
    if a == b {
        return Some(a.clone());
    }
    if let (Some((sa, ba)), Some((sb, bb))) = (int_bits(a), int_bits(b)) {
        return match (sa, sb) {
            _ if sa == sb => int_of(sa, ba.max(bb)),
            // An unsigned integer needs one bit more than its own width.
            (true, false) => int_of(true, ba.max(bb.checked_mul(2)?)),
            _ => int_of(true, bb.max(ba.checked_mul(2)?)),
        };
    }
    let float = |t: &T| match t {
        T::Float16 => Some(16),
        T::Float32 => Some(32),
        T::Float64 => Some(64),
        _ => None,
    };
    if let (Some(x), Some(y)) = (float(a), float(b)) {
        return Some(if x > y { a.clone() } else { b.clone() });
    }
    let text = |t: &T| matches!(t, T::Utf8 | T::LargeUtf8 | T::Utf8View);
    let blob = |t: &T| matches!(t, T::Binary | T::LargeBinary | T::BinaryView);
    let large = |t: &T| matches!(t, T::LargeUtf8 | T::LargeBinary);
    if text(a) && text(b) {
        return Some(if large(a) || large(b) { T::LargeUtf8 } else { T::Utf8 });
    }
    if blob(a) && blob(b) {
        return Some(if large(a) || large(b) { T::LargeBinary } else { T::Binary });
    }
    match (a, b) {
        (T::Null, other) | (other, T::Null) => Some(other.clone()),
        (T::Dictionary(ka, va), T::Dictionary(kb, vb)) => {
            let (sa, ba) = int_bits(ka)?;
            let (sb, bb) = int_bits(kb)?;
            let key = if sa == sb { int_of(sa, ba.max(bb))? } else { T::Int64 };
            Some(T::Dictionary(Box::new(key), Box::new(unify_type(va, vb)?)))
        }
        (T::Dictionary(_, v), other) | (other, T::Dictionary(_, v)) => unify_type(v, other),
        (T::Decimal128(pa, sa), T::Decimal128(pb, sb)) if sa == sb => {
            Some(T::Decimal128(*pa.max(pb), *sa))
        }
        (
            T::Decimal128(pa, sa) | T::Decimal256(pa, sa),
            T::Decimal128(pb, sb) | T::Decimal256(pb, sb),
        ) if sa == sb => Some(T::Decimal256(*pa.max(pb), *sa)),
        (T::List(x), T::List(y)) => Some(T::List(Arc::new(unify_field(x, y)?))),
        (T::List(x) | T::LargeList(x), T::List(y) | T::LargeList(y)) => {
            Some(T::LargeList(Arc::new(unify_field(x, y)?)))
        }
        (T::FixedSizeList(x, n), T::FixedSizeList(y, m)) if n == m => {
            Some(T::FixedSizeList(Arc::new(unify_field(x, y)?), *n))
        }
        (T::Map(x, s), T::Map(y, t)) if s == t => {
            // The entries' own names vary between writers (`key_value`, `entries`); positions count.
            let (T::Struct(xs), T::Struct(ys)) = (x.data_type(), y.data_type()) else {
                return None;
            };
            let [kx, vx] = &xs[..] else { return None };
            let [ky, vy] = &ys[..] else { return None };
            let key = Field::new(kx.name(), unify_type(kx.data_type(), ky.data_type())?, false);
            let value = unify_field(vx, vy)?;
            let entries = Field::new(x.name(), T::Struct(Fields::from(vec![key, value])), false);
            Some(T::Map(Arc::new(entries), *s))
        }
        (T::Struct(xs), T::Struct(ys)) => {
            let mut out: Vec<FieldRef> = Vec::with_capacity(xs.len().max(ys.len()));
            for x in xs {
                out.push(Arc::new(match ys.iter().find(|y| y.name() == x.name()) {
                    Some(y) => unify_field(x, y)?,
                    None => x.as_ref().clone().with_nullable(true),
                }));
            }
            for y in ys.iter().filter(|y| xs.iter().all(|x| x.name() != y.name())) {
                out.push(Arc::new(y.as_ref().clone().with_nullable(true)));
            }
            Some(T::Struct(out.into()))
        }
        _ => None,
    }
}

/// Reads an array as another type that [`unify_type`] allowed.
pub(crate) fn adapt(array: &ArrayRef, to: &DataType) -> std::result::Result<ArrayRef, ArrowError> {
    use DataType as T;
    if array.data_type() == to {
        return Ok(Arc::clone(array));
    }
    Ok(match (array.data_type(), to) {
        (T::Struct(_), T::Struct(fields)) => {
            let from = array.as_struct();
            let columns = fields
                .iter()
                .map(|f| match from.column_by_name(f.name()) {
                    Some(child) => adapt(child, f.data_type()),
                    None => Ok(new_null_array(f.data_type(), from.len())),
                })
                .collect::<std::result::Result<Vec<_>, _>>()?;
            Arc::new(StructArray::try_new_with_length(
                fields.clone(),
                columns,
                from.nulls().cloned(),
                from.len(),
            )?)
        }
        (T::List(_), T::List(field)) => {
            let from = array.as_list::<i32>();
            let values = adapt(from.values(), field.data_type())?;
            Arc::new(ListArray::try_new(
                Arc::clone(field),
                from.offsets().clone(),
                values,
                from.nulls().cloned(),
            )?)
        }
        (T::LargeList(_), T::LargeList(field)) => {
            let from = array.as_list::<i64>();
            let values = adapt(from.values(), field.data_type())?;
            Arc::new(LargeListArray::try_new(
                Arc::clone(field),
                from.offsets().clone(),
                values,
                from.nulls().cloned(),
            )?)
        }
        (T::List(_), T::LargeList(field)) => {
            let from = array.as_list::<i32>();
            let values = adapt(from.values(), field.data_type())?;
            let offsets: ScalarBuffer<i64> = from.offsets().iter().map(|o| i64::from(*o)).collect();
            Arc::new(LargeListArray::try_new(
                Arc::clone(field),
                OffsetBuffer::new(offsets),
                values,
                from.nulls().cloned(),
            )?)
        }
        (T::FixedSizeList(_, _), T::FixedSizeList(field, n)) => {
            let from = array.as_fixed_size_list();
            let values = adapt(from.values(), field.data_type())?;
            Arc::new(FixedSizeListArray::try_new(
                Arc::clone(field),
                *n,
                values,
                from.nulls().cloned(),
            )?)
        }
        (T::Map(_, _), T::Map(field, ordered)) => {
            let from = array.as_map();
            let T::Struct(fields) = field.data_type() else {
                return Err(ArrowError::SchemaError("a map without entries".into()));
            };
            let columns = from
                .entries()
                .columns()
                .iter()
                .zip(fields)
                .map(|(c, f)| adapt(c, f.data_type()))
                .collect::<std::result::Result<Vec<_>, _>>()?;
            let entries = StructArray::try_new(fields.clone(), columns, None)?;
            Arc::new(MapArray::try_new(
                Arc::clone(field),
                from.offsets().clone(),
                entries,
                from.nulls().cloned(),
                *ordered,
            )?)
        }
        // Not `safe`: a value that does not fit is an error, never a silent null.
        _ => cast_with_options(array, to, &CastOptions { safe: false, ..Default::default() })?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use arrow::array::{Int32Array, StringArray};
    use arrow::datatypes::TimeUnit;

    fn files(schemas: Vec<Schema>) -> Vec<(Arc<str>, SchemaRef)> {
        schemas
            .into_iter()
            .enumerate()
            .map(|(i, s)| (Arc::from(format!("f{i}.parquet")), Arc::new(s)))
            .collect()
    }

    #[test]
    fn t9_nullability_is_unified_and_t8_missing_columns_become_nullable() {
        let a = Schema::new(vec![
            Field::new("x", DataType::Int64, false),
            Field::new("a", DataType::Utf8, false),
        ]);
        let b = Schema::new(vec![
            Field::new("x", DataType::Int64, true),
            Field::new("b", DataType::Utf8, false),
        ]);
        let s = unify(&files(vec![a, b])).unwrap();
        let shown: Vec<_> =
            s.fields().iter().map(|f| (f.name().as_str(), f.is_nullable())).collect();
        assert_eq!(shown, [("x", true), ("a", true), ("b", true)]);
    }

    #[test]
    fn only_exact_widenings_are_allowed() {
        use DataType as T;
        let ok = |a: T, b: T, c: T| {
            assert_eq!(unify_type(&a, &b), Some(c.clone()), "{a} {b}");
            assert_eq!(unify_type(&b, &a), Some(c), "{b} {a}");
        };
        ok(T::Int8, T::Int32, T::Int32);
        ok(T::UInt32, T::Int32, T::Int64);
        ok(T::UInt8, T::Int64, T::Int64);
        ok(T::Float32, T::Float64, T::Float64);
        ok(T::Utf8, T::LargeUtf8, T::LargeUtf8);
        ok(T::Null, T::Binary, T::Binary);
        ok(T::Dictionary(Box::new(T::Int8), Box::new(T::Utf8)), T::Utf8, T::Utf8);
        ok(T::Decimal128(5, 2), T::Decimal128(9, 2), T::Decimal128(9, 2));
        let no = |a: T, b: T| assert_eq!(unify_type(&a, &b), None, "{a} {b}");
        no(T::UInt64, T::Int64);
        no(T::Int64, T::Float64);
        no(T::Utf8, T::Binary);
        no(T::Decimal128(5, 2), T::Decimal128(5, 3));
        no(T::Timestamp(TimeUnit::Second, None), T::Timestamp(TimeUnit::Nanosecond, None));
        no(
            T::Timestamp(TimeUnit::Second, None),
            T::Timestamp(TimeUnit::Second, Some("UTC".into())),
        );
        no(T::Boolean, T::Int8);
    }

    #[test]
    fn a_mismatch_names_both_files_the_column_and_both_types() {
        let a = Schema::new(vec![Field::new("x", DataType::Int64, false)]);
        let b = Schema::new(vec![Field::new("x", DataType::Utf8, false)]);
        let e = unify(&files(vec![a, b])).unwrap_err();
        assert_eq!(e.message(), "column \"x\" is Int64 in f0.parquet and Utf8 in f1.parquet");
        assert_eq!(e.kind(), ErrorKind::Schema);
    }

    #[test]
    fn nested_arrays_are_adapted() {
        let inner: ArrayRef = Arc::new(StructArray::from(vec![(
            Arc::new(Field::new("a", DataType::Int32, false)),
            Arc::new(Int32Array::from(vec![1, 2, 3])) as ArrayRef,
        )]));
        let item = Arc::new(Field::new("item", inner.data_type().clone(), true));
        let list: ArrayRef =
            Arc::new(ListArray::new(item, OffsetBuffer::from_lengths([2, 0, 1]), inner, None));
        let wider = DataType::Struct(Fields::from(vec![
            Field::new("b", DataType::Utf8, true),
            Field::new("a", DataType::Int64, true),
        ]));
        let to = DataType::List(Arc::new(Field::new("element", wider, true)));
        let out = adapt(&list, &to).unwrap();
        assert_eq!(out.data_type(), &to);
        let values = out.as_list::<i32>().values().as_struct().clone();
        assert_eq!(values.column(0).null_count(), 3);
        assert_eq!(values.column(1).len(), 3);
        let text: ArrayRef = Arc::new(StringArray::from(vec!["x"]));
        assert_eq!(adapt(&text, &DataType::LargeUtf8).unwrap().data_type(), &DataType::LargeUtf8);
    }
}
