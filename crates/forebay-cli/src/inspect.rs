//! `forebay inspect`.

use arrow::array::{Array, ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow::util::pretty::pretty_format_batches;
use clap::Args;
use forebay::text::{bytes, count, shorten, visible};
use forebay::{Error, Inspect, Result};
use serde_json::{Value, json};
use std::sync::Arc;

use crate::StorageArgs;
use crate::text::say;

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

/// Characters of a type that are shown: wide structs are longer than any screen.
const TYPE_SHOWN: usize = 200;

/// Characters of a value that are shown.
const VALUE_SHOWN: usize = 40;

/// Prints what is in a dataset.
pub fn inspect(args: &InspectArgs, as_json: bool) -> Result<()> {
    let i = forebay::inspect(args.uri.clone(), args.storage.options(), args.rows)?;
    let head = i.head.iter().map(|batch| shown(batch, !as_json)).collect::<Result<Vec<_>>>()?;
    if as_json {
        let mut out = i.to_json();
        if let Value::Object(map) = &mut out {
            map.insert("head".to_owned(), head_json(&head));
        }
        return say(out);
    }
    say(to_text(&i, &head)?)
}

fn to_text(i: &Inspect, head: &[RecordBatch]) -> Result<String> {
    let mut lines = vec![
        format!(
            "{} rows, {} columns, {} files, {} row groups, {}",
            count(i.rows()),
            i.columns.len(),
            i.files.len(),
            i.row_groups(),
            bytes(i.bytes())
        ),
        "\ncolumns:".to_owned(),
    ];
    let columns: Vec<(String, String, bool)> = i
        .columns
        .iter()
        .map(|(name, kind, null)| (visible(name), visible(&shorten(kind, TYPE_SHOWN)), *null))
        .collect();
    let width = columns.iter().map(|(n, _, _)| n.chars().count()).max().unwrap_or(0);
    for (name, kind, null) in &columns {
        lines.push(format!("  {name:width$}  {kind}{}", if *null { "" } else { " not null" }));
    }
    lines.push("\nfiles:".to_owned());
    for file in i.files.iter().take(FILES_SHOWN) {
        let largest = file.row_groups.iter().map(|(_, b)| *b).max().unwrap_or(0);
        lines.push(format!(
            "  {}  {} rows, {} row groups (largest {}), {}",
            visible(&file.uri),
            count(file.rows),
            file.row_groups.len(),
            bytes(largest),
            bytes(file.size)
        ));
    }
    if i.files.len() > FILES_SHOWN {
        lines.push(format!("  and {} more", i.files.len() - FILES_SHOWN));
    }
    if !head.is_empty() {
        let table = pretty_format_batches(head)
            .map_err(|e| Error::internal("cannot show the rows").with_source(e))?;
        lines.push(format!("\nfirst rows:\n{table}"));
    }
    Ok(lines.join("\n"))
}

/// The batch with every value as a short text: a picture is shown by its size, not its bytes. `names`:
/// also with names that a terminal can show.
fn shown(batch: &RecordBatch, names: bool) -> Result<RecordBatch> {
    let columns: Vec<ArrayRef> = batch
        .columns()
        .iter()
        .map(|c| {
            let values =
                (0..c.len()).map(|row| value(c, row)).collect::<Result<Vec<Option<String>>>>()?;
            Ok(Arc::new(StringArray::from(values)) as ArrayRef)
        })
        .collect::<Result<_>>()?;
    let fields: Vec<Field> = batch
        .schema()
        .fields()
        .iter()
        .map(|f| {
            Field::new(
                if names { visible(f.name()) } else { f.name().clone() },
                DataType::Utf8,
                true,
            )
        })
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
    // Data must not be able to talk to the terminal.
    Ok(Some(visible(&shorten(&text, VALUE_SHOWN + 1))))
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
