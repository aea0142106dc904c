//! Files of other writers: pruning against filtering alone, with constants drawn from the data.

use std::fs;
use std::path::Path;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::DataType;
use arrow::util::display::array_value_to_string;
use bytes::Bytes;
use forebay_sql::{FileStats, Relation};
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};
use parquet::file::metadata::PageIndexPolicy;

use crate::pruning::{compare, same};
use crate::support::{compile, data, filter, select};

/// A constant of SQL for a value, or none for types that are not compared here.
fn constant(array: &ArrayRef, row: usize) -> Option<String> {
    if array.is_null(row) {
        return None;
    }
    let text = array_value_to_string(array, row).ok()?;
    match array.data_type() {
        t if t.is_integer() => Some(text),
        DataType::Float16 | DataType::Float32 | DataType::Float64 => {
            Some(format!("CAST('{text}' AS DOUBLE)"))
        }
        DataType::Boolean => Some(text),
        DataType::Utf8 | DataType::Utf8View | DataType::LargeUtf8 => {
            Some(format!("'{}'", text.replace('\'', "''")))
        }
        DataType::Binary | DataType::BinaryView => Some(format!("X'{text}'")),
        DataType::Decimal128(p, s) => Some(format!("CAST('{text}' AS DECIMAL({p}, {s}))")),
        DataType::Date32 => Some(format!("DATE '{text}'")),
        DataType::Timestamp(..) => Some(format!("arrow_cast('{text}', '{}')", array.data_type())),
        _ => None,
    }
}

fn check(path: &Path) -> usize {
    let bytes: Bytes = fs::read(path).unwrap().into();
    let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Optional);
    let Ok(metadata) = ArrowReaderMetadata::load(&bytes, options) else { return 0 };
    let builder =
        ParquetRecordBatchReaderBuilder::new_with_metadata(bytes.clone(), metadata.clone());
    let Ok(batches) = builder.build().and_then(|r| Ok(r.collect::<Result<Vec<_>, _>>()?)) else {
        return 0;
    };
    let mut checked = 0;
    for (i, field) in metadata.schema().fields().iter().enumerate() {
        let name = format!("\"{}\"", field.name());
        let mut filters = vec![format!("{name} IS NULL"), format!("{name} IS NOT NULL")];
        for batch in batches.iter().take(3) {
            let column = batch.column(i);
            let step = (column.len() / 3).max(1);
            for row in (0..column.len()).step_by(step) {
                let Some(value) = constant(column, row) else { continue };
                for op in ["=", "<>", "<", "<=", ">", ">="] {
                    filters.push(format!("{name} {op} {value}"));
                }
                filters.push(format!("NOT ({name} > {value})"));
                filters.push(format!("{name} BETWEEN {value} AND {value}"));
            }
        }
        filters.sort();
        filters.dedup();
        for sql in filters {
            let Ok(relation) = Relation::compile(
                metadata.schema(),
                &[(0, filter(&sql)), (1, select(&[field.name()]))],
            ) else {
                continue;
            };
            let (reference, pruned, ..) = compare(&bytes, &relation);
            assert!(
                same(&reference, &pruned),
                "{}: {sql}: {:?}",
                path.display(),
                relation.pruning_text()
            );
            checked += 1;
        }
    }
    checked
}

#[test]
fn files_of_other_writers() {
    let Some(folder) = data("parquet-testing/data") else { return };
    let mut total = 0;
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    for path in paths.iter().filter(|p| p.extension().is_some_and(|e| e == "parquet")) {
        // Written with a broken checksum or a codec that is not built in: not a matter of pruning.
        let checked = check(path);
        total += checked;
        for known in [
            "nan_in_stats",
            "binary_truncated_min_max",
            "int32_with_null_pages",
            "floating_orders_nan_count",
            "float16_zeros_and_nans",
        ] {
            if path.file_stem().is_some_and(|s| s == known) {
                assert!(checked > 2, "{known} was not checked");
            }
        }
    }
    assert!(total > 500, "only {total} filters were checked");
}

#[test]
fn flights_that_left_late() {
    let Some(folder) = data("flights") else { return };
    let (mut rows, mut late, mut late_by_rows, mut unknown) = (0, 0, 0, 0);
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    for path in paths.iter().filter(|p| p.extension().is_some_and(|e| e == "parquet")) {
        let bytes: Bytes = fs::read(path).unwrap().into();
        let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Optional);
        let metadata = ArrowReaderMetadata::load(&bytes, options).unwrap();
        let steps = [(0, filter("dep_delay > 60")), (1, select(&["origin"]))];
        let relation = Relation::compile(metadata.schema(), &steps).unwrap();
        assert_eq!(relation.input_columns(), ["dep_delay", "origin"]);
        let row_filter = relation.row_filter().unwrap();
        assert_eq!(row_filter.input_columns(), ["dep_delay"]);
        let stats =
            FileStats { metadata: metadata.metadata(), schema: metadata.schema(), constants: &[] };
        assert!(relation.prune_row_groups(&stats).into_iter().any(|may| may));
        for batch in
            ParquetRecordBatchReaderBuilder::new_with_metadata(bytes.clone(), metadata.clone())
                .build()
                .unwrap()
        {
            let batch = batch.unwrap();
            rows += batch.num_rows();
            let applied = relation.segments()[0].apply(&batch).unwrap();
            late += applied.batch.num_rows();
            late_by_rows += row_filter.segments()[0]
                .apply(&batch)
                .unwrap()
                .kept
                .map_or(batch.num_rows(), |k| k.len());
            let null =
                compile(&batch, vec![filter("NOT (dep_delay > 60) OR dep_delay > 60")]).unwrap();
            unknown +=
                batch.num_rows() - null.segments()[0].apply(&batch).unwrap().batch.num_rows();
        }
    }
    assert_eq!((rows, late, late_by_rows), (336_776, 26_581, 26_581));
    assert_eq!(
        unknown, 8_255,
        "flights without a departure pass neither a comparison nor its negation"
    );
}
