//! Timestamps that are stored as INT96, the old type of Spark, Hive and Impala.
//!
//! INT96 holds a day and the nanoseconds within it. Its days reach far beyond the years 1677 to 2262,
//! which 64-bit nanoseconds hold, and the parquet crate, left alone, reads INT96 as nanoseconds and
//! wraps: the year 9999, which many tables use for "never", becomes 1816. So INT96 is read as
//! microseconds, the unit of Spark's own timestamps; what a value has below a microsecond is cut off,
//! as Spark does. Where the file carries the Arrow schema of its writer, that schema says which unit
//! the values came from, and it stays.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, TimeUnit};
use parquet::arrow::ARROW_SCHEMA_META_KEY;
use parquet::basic::Type;
use parquet::file::metadata::FileMetaData;
use parquet::schema::types::SchemaDescriptor;

/// Whether any column of a file is stored as INT96, at any depth.
pub(crate) fn present(descr: &SchemaDescriptor) -> bool {
    descr.columns().iter().any(|c| c.physical_type() == Type::INT96)
}

/// The schema with INT96 as microseconds, or `None` where a leaf of one schema has no match in the
/// other.
pub(super) fn as_microseconds(schema: Schema, file: &FileMetaData) -> Option<Schema> {
    let descr = file.schema_descr();
    let known = file
        .key_value_metadata()
        .is_some_and(|all| all.iter().any(|kv| kv.key == ARROW_SCHEMA_META_KEY));
    if known || !present(descr) {
        return Some(schema);
    }
    let mut physical = descr.columns().iter().map(|c| c.physical_type());
    let fields = convert_all(schema.fields(), &mut physical)?;
    match physical.next() {
        None => Some(Schema::new_with_metadata(fields, schema.metadata)),
        Some(_) => None,
    }
}

fn convert_all(fields: &Fields, physical: &mut impl Iterator<Item = Type>) -> Option<Fields> {
    fields.iter().map(|f| convert(f, physical)).collect()
}

/// Leaves of both schemas come in the same order, depth first.
fn convert(field: &FieldRef, physical: &mut impl Iterator<Item = Type>) -> Option<FieldRef> {
    use DataType as T;
    let data_type = match field.data_type() {
        T::Struct(fields) => T::Struct(convert_all(fields, physical)?),
        T::List(f) => T::List(convert(f, physical)?),
        T::LargeList(f) => T::LargeList(convert(f, physical)?),
        T::FixedSizeList(f, n) => T::FixedSizeList(convert(f, physical)?, *n),
        T::Map(f, sorted) => T::Map(convert(f, physical)?, *sorted),
        leaf => match (physical.next()?, leaf) {
            (Type::INT96, T::Timestamp(TimeUnit::Nanosecond, zone)) => {
                T::Timestamp(TimeUnit::Microsecond, zone.clone())
            }
            _ => leaf.clone(),
        },
    };
    Some(Arc::new(Field::clone(field).with_data_type(data_type)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use parquet::arrow::parquet_to_arrow_schema;
    use parquet::schema::parser::parse_message_type;

    #[test]
    fn int96_is_found_at_any_depth_and_nothing_else_changes() {
        let message = "message m {
            required int64 id;
            optional int64 exact (TIMESTAMP(NANOS,false));
            optional int96 t = 7;
            optional group l (LIST) { repeated group list { optional int96 element; } }
            optional group old (LIST) { repeated int96 array; }
            optional group m (MAP) {
                repeated group key_value { required int96 key; optional binary value (UTF8); }
            }
            optional group s { optional binary x; optional int96 y; }
        }";
        let descr = SchemaDescriptor::new(Arc::new(parse_message_type(message).unwrap()));
        let before = parquet_to_arrow_schema(&descr, None).unwrap();
        let file = FileMetaData::new(1, 0, None, None, Arc::new(descr), None);
        let after = as_microseconds(before.clone(), &file).unwrap();
        let shown =
            |s: &Schema| -> Vec<String> { s.fields().iter().map(|f| format!("{f:?}")).collect() };
        let (ns, us) = (shown(&before), shown(&after));
        assert_eq!(ns[..2], us[..2]);
        for (ns, us) in ns[2..].iter().zip(&us[2..]) {
            assert!(ns.contains("Nanosecond"), "{ns}");
            assert_eq!(ns.replace("Nanosecond", "Microsecond"), *us);
        }
        assert_eq!(us.len(), 7);
    }
}
