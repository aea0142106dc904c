//! Short ways to build batches and run steps.

use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::datatypes::{Field, Schema};
use forebay_core::Result;
use forebay_plan::Step;
use forebay_sql::Relation;

pub fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let fields: Vec<Field> =
        columns.iter().map(|(name, a)| Field::new(*name, a.data_type().clone(), true)).collect();
    let arrays = columns.into_iter().map(|(_, a)| a).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
}

pub fn array<A: Array + 'static>(a: A) -> ArrayRef {
    Arc::new(a)
}

pub fn filter(sql: &str) -> Step {
    Step::Filter(sql.to_owned())
}

pub fn with(name: &str, sql: &str) -> Step {
    Step::WithColumn { name: name.to_owned(), expr: sql.to_owned() }
}

pub fn select(names: &[&str]) -> Step {
    Step::Select(names.iter().map(|n| (*n).to_owned()).collect())
}

pub fn drop_columns(names: &[&str]) -> Step {
    Step::Drop(names.iter().map(|n| (*n).to_owned()).collect())
}

pub fn rename(pairs: &[(&str, &str)]) -> Step {
    Step::Rename(pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect())
}

pub fn compile(input: &RecordBatch, steps: Vec<Step>) -> Result<Relation> {
    let steps: Vec<(usize, Step)> = steps.into_iter().enumerate().collect();
    Relation::compile(&input.schema(), &steps)
}

/// Compiles the steps and applies them to one batch.
pub fn run(input: &RecordBatch, steps: Vec<Step>) -> Result<RecordBatch> {
    compile(input, steps)?.cursor().push(input).map(|a| a.batch)
}

/// The one value column `x` of a computed expression.
pub fn eval(input: &RecordBatch, sql: &str) -> Result<ArrayRef> {
    run(input, vec![with("x", sql), select(&["x"])]).map(|b| Arc::clone(b.column(0)))
}

/// The rows that a filter keeps.
pub fn kept(input: &RecordBatch, sql: &str) -> Vec<u32> {
    let applied = compile(input, vec![filter(sql)]).unwrap().cursor().push(input).unwrap();
    match applied.kept {
        Some(kept) => kept.values().to_vec(),
        None => (0..input.num_rows() as u32).collect(),
    }
}

/// A folder of the shared test data; None, with a note, where it is missing.
pub fn data(folder: &str) -> Option<PathBuf> {
    let root = std::env::var_os("FOREBAY_TEST_DATA").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
        PathBuf::from,
    );
    let path = root.join(folder);
    if path.is_dir() {
        return Some(path);
    }
    eprintln!("skipped: {} is missing (set FOREBAY_TEST_DATA)", path.display());
    None
}
