//! Time zones of timestamps that were seconds.
//!
//! Parquet has no seconds: a writer stores them as milliseconds, and keeps type and zone in the Arrow
//! schema beside. The parquet crate takes the zone from there only where the units are the same, and
//! reads what were seconds in Berlin as milliseconds in UTC. The instants are right, and what an
//! expression says of their hour or day is not.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, TimeUnit};
use arrow_ipc::convert::try_schema_from_ipc_buffer;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use parquet::arrow::ARROW_SCHEMA_META_KEY;
use parquet::file::metadata::FileMetaData;

/// Whether any column has a zone that the parquet crate must be told of, at any depth.
pub(crate) fn present(fields: &Fields) -> bool {
    fields.iter().any(|f| zoned(f.data_type()))
}

fn zoned(data_type: &DataType) -> bool {
    use DataType as T;
    match data_type {
        T::Timestamp(TimeUnit::Millisecond, Some(zone)) => &**zone != "UTC",
        T::Struct(fields) => present(fields),
        T::List(f) | T::LargeList(f) | T::FixedSizeList(f, _) | T::Map(f, _) => {
            zoned(f.data_type())
        }
        _ => false,
    }
}

/// The schema with the zones that the writer's schema has.
pub(super) fn restored(schema: Schema, file: &FileMetaData) -> Schema {
    let Some(written) = written(file) else { return schema };
    Schema::new_with_metadata(all(schema.fields(), written.fields()), schema.metadata)
}

/// The Arrow schema that the writer kept. What cannot be read was refused before, or does not matter.
fn written(file: &FileMetaData) -> Option<Schema> {
    let kept = file.key_value_metadata()?.iter().find(|kv| kv.key == ARROW_SCHEMA_META_KEY)?;
    let bytes = BASE64.decode(kept.value.as_ref()?).ok()?;
    try_schema_from_ipc_buffer(&bytes).ok()
}

fn all(fields: &Fields, written: &Fields) -> Fields {
    let by_name = |f: &FieldRef| match written.iter().find(|w| w.name() == f.name()) {
        Some(w) => one(f, w),
        None => Arc::clone(f),
    };
    fields.iter().map(by_name).collect()
}

fn one(field: &FieldRef, written: &FieldRef) -> FieldRef {
    use DataType as T;
    let data_type = match (field.data_type(), written.data_type()) {
        (T::Timestamp(TimeUnit::Millisecond, Some(_)), T::Timestamp(TimeUnit::Second, Some(z))) => {
            T::Timestamp(TimeUnit::Millisecond, Some(Arc::clone(z)))
        }
        (T::Struct(f), T::Struct(w)) => T::Struct(all(f, w)),
        (T::List(f), T::List(w)) => T::List(one(f, w)),
        (T::LargeList(f), T::LargeList(w)) => T::LargeList(one(f, w)),
        (T::FixedSizeList(f, n), T::FixedSizeList(w, _)) => T::FixedSizeList(one(f, w), *n),
        (T::Map(f, sorted), T::Map(w, _)) => T::Map(one(f, w), *sorted),
        _ => return Arc::clone(field),
    };
    Arc::new(Field::clone(field).with_data_type(data_type))
}
