//! Files of many writers: data or a clear error, and what is known about them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_core::ErrorKind;
use forebay_io::Dataset;

use crate::files::*;

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
    // Its checksums are wrong on purpose; everything else must be read.
    assert_eq!(refused, ["datapage_v1-corrupt-checksum.parquet"]);
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
