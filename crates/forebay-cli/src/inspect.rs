//! `forebay inspect`.

use arrow::array::{Array, ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow::util::pretty::pretty_format_batches;
use clap::Args;
use forebay::{Error, Result};
use serde_json::{Value, json};
use std::sync::Arc;

use crate::StorageArgs;
use crate::text::{bytes, count};

#[derive(Args)]
pub struct InspectArgs {
    /// Paths, globs, folders or s3:// URIs.
    #[arg(required = true)]
    uri: Vec<String>,
    /// Rows to show.
    #[arg(long, default_value_t = 5)]
    rows: u64,
    #[command(flatten)]
    storage: StorageArgs,
}

/// Files that are listed one by one; more are summed up.
const FILES_SHOWN: usize = 20;

/// Characters of a value that are shown.
const VALUE_SHOWN: usize = 40;

/// Prints what is in a dataset.
pub fn inspect(args: &InspectArgs, as_json: bool) -> Result<()> {
    let i = forebay::inspect(args.uri.clone(), args.storage.options(), args.rows)?;
    let head = i.head.iter().map(shown).collect::<Result<Vec<_>>>()?;
    if as_json {
        let mut out = i.to_json();
        if let Value::Object(map) = &mut out {
            map.insert("head".to_owned(), head_json(&head));
        }
        println!("{out}");
        return Ok(());
    }
    println!(
        "{} rows, {} columns, {} files, {} row groups, {}",
        count(i.rows()),
        i.columns.len(),
        i.files.len(),
        i.row_groups(),
        bytes(i.bytes())
    );
    println!("\ncolumns:");
    let width = i.columns.iter().map(|(n, _, _)| n.chars().count()).max().unwrap_or(0);
    for (name, kind, null) in &i.columns {
        println!("  {name:width$}  {kind}{}", if *null { "" } else { " not null" });
    }
    println!("\nfiles:");
    for file in i.files.iter().take(FILES_SHOWN) {
        let largest = file.row_groups.iter().map(|(_, b)| *b).max().unwrap_or(0);
        println!(
            "  {}  {} rows, {} row groups (largest {}), {}",
            file.uri,
            count(file.rows),
            file.row_groups.len(),
            bytes(largest),
            bytes(file.size)
        );
    }
    if i.files.len() > FILES_SHOWN {
        println!("  and {} more", i.files.len() - FILES_SHOWN);
    }
    if !head.is_empty() {
        let table = pretty_format_batches(&head)
            .map_err(|e| Error::internal("cannot show the rows").with_source(e))?;
        println!("\nfirst rows:\n{table}");
    }
    Ok(())
}

/// The batch with every value as a short text: a picture is shown by its size, not its bytes.
fn shown(batch: &RecordBatch) -> Result<RecordBatch> {
    let columns: Vec<ArrayRef> = batch
        .columns()
        .iter()
        .map(|c| {
            let values = (0..c.len())
                .map(|row| value(c, row))
                .collect::<Result<Vec<Option<String>>>>()?;
            Ok(Arc::new(StringArray::from(values)) as ArrayRef)
        })
        .collect::<Result<_>>()?;
    let fields: Vec<Field> = batch
        .schema()
        .fields()
        .iter()
        .map(|f| Field::new(f.name(), DataType::Utf8, true))
        .collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
        .map_err(|e| Error::internal("cannot show the rows").with_source(e))
}

fn value(array: &ArrayRef, row: usize) -> Result<Option<String>> {
    use arrow::array::AsArray;
    if array.is_null(row) {
        return Ok(None);
    }
    let size = match array.data_type() {
        DataType::Binary => Some(array.as_binary::<i32>().value(row).len()),
        DataType::LargeBinary => Some(array.as_binary::<i64>().value(row).len()),
        DataType::BinaryView => Some(array.as_binary_view().value(row).len()),
        _ => None,
    };
    if let Some(size) = size {
        return Ok(Some(format!("<{}>", bytes(size as u64))));
    }
    let options = FormatOptions::default();
    let text = ArrayFormatter::try_new(array.as_ref(), &options)
        .map_err(|e| Error::internal("cannot show a value").with_source(e))?
        .value(row)
        .try_to_string()
        .map_err(|e| Error::internal("cannot show a value").with_source(e))?;
    if text.chars().count() > VALUE_SHOWN {
        let short: String = text.chars().take(VALUE_SHOWN).collect();
        return Ok(Some(format!("{short}…")));
    }
    Ok(Some(text))
}

fn head_json(head: &[RecordBatch]) -> Value {
    use arrow::array::AsArray;
    let mut rows = Vec::new();
    for batch in head {
        for row in 0..batch.num_rows() {
            let mut object = serde_json::Map::new();
            for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
                let text = column.as_string::<i32>();
                let value = if text.is_null(row) { Value::Null } else { json!(text.value(row)) };
                object.insert(field.name().clone(), value);
            }
            rows.push(Value::Object(object));
        }
    }
    Value::Array(rows)
}
