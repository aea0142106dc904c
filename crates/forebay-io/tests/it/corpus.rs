//! Files of many writers: data or a clear error, and what is known about them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_core::ErrorKind;
use forebay_io::{BlockReader, Dataset};

use crate::files::*;

/// Two strings of 1 GiB each in one column: more than 32-bit offsets address.
const LARGE: &str = "large_string_map.brotli.parquet";

/// The real thing, at full size: 2 GiB of strings, from another writer, in a small file.
#[tokio::test]
async fn t4_two_strings_of_one_gib_come_in_two_batches() {
    let Some(folder) = data("parquet-testing/data") else { return };
    let path = folder.join(LARGE);
    let dataset = Arc::new(Dataset::open(&source(&[text(&path)])).await.unwrap());
    let reader = BlockReader::all(dataset).unwrap();
    let got = reader.decode(reader.fetch(0, None).await.unwrap()).unwrap();
    assert_eq!(got.iter().map(|b| b.num_rows()).collect::<Vec<_>>(), [1, 1]);
}

fn parquet_files(folder: &Path) -> Vec<PathBuf> {
    let mut out: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "parquet"))
        .collect();
    out.sort();
    out
}

#[tokio::test]
async fn every_good_file_gives_data_or_a_clear_error() {
    let Some(folder) = data("parquet-testing/data") else { return };
    let mut refused = Vec::new();
    for path in parquet_files(&folder) {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name == LARGE {
            continue;
        }
        match read_all(&source(&[text(&path)])).await {
            Ok(_) => {}
            Err(e) => {
                assert!(matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported), "{e:?}");
                assert!(e.to_string().contains(&name), "{e}");
                eprintln!("{e:?}");
                refused.push(name);
            }
        }
    }
    // The checksums of the first are wrong on purpose. The footer of the second has a list of its
    // writer's own where the format has a number, and the parquet crate does not skip it. Everything
    // else must be read.
    assert_eq!(refused, ["datapage_v1-corrupt-checksum.parquet", "dict-page-offset-zero.parquet"]);
}

#[tokio::test]
async fn every_bad_file_is_an_error() {
    let Some(folder) = data("parquet-testing/bad_data") else { return };
    for path in parquet_files(&folder) {
        let begun = Instant::now();
        match read_all(&source(&[text(&path)])).await {
            Ok(batch) => panic!("{} gave {} rows", path.display(), batch.num_rows()),
            Err(e) => {
                assert!(matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported), "{e:?}");
                assert!(e.to_string().contains(path.file_name().unwrap().to_str().unwrap()), "{e}");
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}

/// Every value of a column, as text.
fn shown(batch: &arrow::array::RecordBatch, column: &str) -> Vec<String> {
    use arrow::util::display::{ArrayFormatter, FormatOptions};
    let options = FormatOptions::new().with_null("null");
    let array = batch.column_by_name(column).unwrap();
    let formatter = ArrayFormatter::try_new(array.as_ref(), &options).unwrap();
    (0..batch.num_rows()).map(|row| formatter.value(row).to_string()).collect()
}

/// Lists without an annotation, in a file whose own row count is 0: the values that pyarrow gives.
#[tokio::test]
async fn repeated_fields_without_annotation_are_lists() {
    let Some(folder) = data("parquet-testing/data") else { return };
    let path = folder.join("repeated_no_annotation.parquet");
    let got = read_all(&source(&[text(&path)])).await.unwrap();
    assert_eq!(shown(&got, "id"), ["1", "2", "3", "4", "5", "6"]);
    assert_eq!(
        shown(&got, "phoneNumbers"),
        [
            "null",
            "null",
            "{phone: []}",
            "{phone: [{number: 5555555555, kind: null}]}",
            "{phone: [{number: 1111111111, kind: home}]}",
            "{phone: [{number: 1111111111, kind: home}, {number: 2222222222, kind: null}, \
             {number: 3333333333, kind: mobile}]}",
        ]
    );
}

/// Spark writes INT96 of years that 64-bit nanoseconds do not hold.
#[tokio::test]
async fn int96_of_far_years_keeps_its_values() {
    let Some(folder) = data("parquet-testing/data") else { return };
    let path = folder.join("int96_from_spark.parquet");
    let got = read_all(&source(&[text(&path)])).await.unwrap();
    let values = got.column_by_name("a").unwrap();
    let values: Vec<Option<i64>> =
        arrow::array::AsArray::as_primitive::<arrow::datatypes::TimestampMicrosecondType>(values)
            .iter()
            .collect();
    assert_eq!(
        values,
        [
            Some(1_704_141_296_123_456),
            Some(1_704_070_800_000_000),
            // 9999-12-31, and a day in the year 290000.
            Some(253_402_225_200_000_000),
            Some(1_735_599_600_000_000),
            None,
            Some(9_089_380_393_200_000_000),
        ]
    );
}

#[tokio::test]
async fn flights_have_336776_rows() {
    let Some(folder) = data("flights") else { return };
    let dataset = Dataset::open(&source(&[text(&folder)])).await.unwrap();
    assert_eq!(dataset.rows(), 336_776);
    assert_eq!(dataset.schema.fields().len(), 19);
    let got = read_all(&source(&[text(&folder)])).await.unwrap();
    assert_eq!(got.num_rows(), 336_776);
    let late = got.column_by_name("dep_delay").unwrap();
    assert_eq!(late.null_count(), 8_255);
    let glob = format!("{}/part-[0-3].parquet", text(&folder));
    assert_eq!(Dataset::open(&source(&[&glob])).await.unwrap().rows(), 336_776);
}
