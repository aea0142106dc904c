//! Making and reading test data.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use forebay_core::Result;
use forebay_io::{BlockReader, Dataset};
use forebay_plan::ParquetSource;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

/// The shared test data, or `None` (said once) where it is missing.
pub fn data(folder: &str) -> Option<PathBuf> {
    let root = std::env::var_os("FOREBAY_TEST_DATA")
        .map(PathBuf::from)
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"));
    let path = root.join(folder);
    if path.exists() {
        Some(path)
    } else {
        eprintln!("skipped: {} is missing", path.display());
        None
    }
}

pub fn source(uris: &[&str]) -> ParquetSource {
    ParquetSource { uri: uris.iter().map(|u| (*u).to_owned()).collect(), ..Default::default() }
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A file of these batches; without batches it has a schema and no row group.
pub fn write_with(
    path: &Path,
    schema: &SchemaRef,
    batches: &[RecordBatch],
    props: WriterProperties,
) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, encode(schema, batches, props)).unwrap();
}

pub fn encode(schema: &SchemaRef, batches: &[RecordBatch], props: WriterProperties) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut out, Arc::clone(schema), Some(props)).unwrap();
    for batch in batches {
        writer.write(batch).unwrap();
    }
    writer.close().unwrap();
    out
}

pub fn write(path: &Path, batch: &RecordBatch) {
    write_with(path, &batch.schema(), std::slice::from_ref(batch), WriterProperties::default());
}

pub fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let fields: Vec<Field> =
        columns.iter().map(|(n, a)| Field::new(*n, a.data_type().clone(), true)).collect();
    RecordBatch::try_new(
        Arc::new(Schema::new(fields)),
        columns.into_iter().map(|(_, a)| a).collect(),
    )
    .unwrap()
}

/// `id` counts from `first`, `name` is text made of it.
pub fn numbered(first: i64, rows: i64) -> RecordBatch {
    let ids: Vec<i64> = (first..first + rows).collect();
    let names: Vec<String> =
        ids.iter().map(|i| format!("name {i} {}", "x".repeat(i.rem_euclid(17) as usize))).collect();
    batch(vec![
        ("id", Arc::new(Int64Array::from(ids)) as ArrayRef),
        ("name", Arc::new(StringArray::from(names)) as ArrayRef),
    ])
}

pub fn int_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, true),
        Field::new("name", DataType::Utf8, true),
    ]))
}

/// Opens, fetches and decodes everything.
pub async fn read_all(source: &ParquetSource) -> Result<RecordBatch> {
    let dataset = Arc::new(Dataset::open(source).await?);
    let reader = BlockReader::all(dataset)?;
    read_blocks(&reader).await
}

pub async fn read_blocks(reader: &BlockReader) -> Result<RecordBatch> {
    let mut batches = Vec::new();
    for block in 0..reader.dataset().blocks.len() {
        let fetched = reader.fetch(block, None).await?;
        let rows = fetched.rows();
        let got = reader.decode(fetched)?;
        assert_eq!(got.iter().map(|b| b.num_rows() as u64).sum::<u64>(), rows);
        batches.extend(got);
    }
    Ok(concat_batches(&reader.schema(), &batches).unwrap())
}

pub fn ids(batch: &RecordBatch) -> Vec<i64> {
    use arrow::array::AsArray;
    batch
        .column_by_name("id")
        .unwrap()
        .as_primitive::<arrow::datatypes::Int64Type>()
        .values()
        .to_vec()
}
