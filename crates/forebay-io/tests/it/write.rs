//! Writing to disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use forebay_core::{ErrorKind, Result};
use forebay_io::{Dataset, ParquetWriter, WriteSummary};
use forebay_plan::{ParquetSink, WriteMode};

use crate::files::*;

pub fn sink(uri: &str, mode: WriteMode) -> ParquetSink {
    ParquetSink { mode, ..ParquetSink::new(uri) }
}

pub async fn write_run(sink: &ParquetSink, batches: &[RecordBatch]) -> Result<WriteSummary> {
    let mut writer = ParquetWriter::create(sink, batches[0].schema()).await?;
    for batch in batches {
        writer.write(batch)?;
        writer.ship().await?;
    }
    writer.commit().await
}

/// What a plain reader sees: every file whose name is not hidden.
fn visible(folder: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if !path.file_name().unwrap().to_str().unwrap().starts_with(['_', '.']) {
            out.push(path);
        }
    }
    out
}

#[tokio::test]
async fn a_run_becomes_visible_at_its_commit() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("deep/out");
    let mut writer =
        ParquetWriter::create(&sink(text(&out), WriteMode::Error), int_schema()).await.unwrap();
    for i in 0..10 {
        writer.write(&numbered(i * 100, 100)).unwrap();
        writer.ship().await.unwrap();
    }
    assert_eq!(writer.rows(), 1000);
    assert!(visible(&out).is_empty());
    let summary = writer.commit().await.unwrap();
    assert_eq!((summary.rows, summary.files.len()), (1000, 1));
    assert_eq!(visible(&out).len(), 1);
    assert!(Path::new(&summary.manifest).exists());
    assert_eq!(summary.bytes, std::fs::metadata(&summary.files[0].uri).unwrap().len());
    let name = visible(&out)[0].file_name().unwrap().to_str().unwrap().to_owned();
    assert!(name.starts_with("part-00000-") && name.ends_with(".parquet"), "{name}");
    let got = read_all(&source(&[text(&out)])).await.unwrap();
    assert_eq!(ids(&got), (0..1000).collect::<Vec<_>>());
    // Nothing of the staging is left.
    let ours: Vec<_> =
        std::fs::read_dir(out.join("_forebay")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(ours.len(), 2, "{ours:?}");
}

#[tokio::test]
async fn row_groups_and_files_have_their_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let mut state = 1u64;
    let noise: Vec<i64> = (0..400_000)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state as i64
        })
        .collect();
    let made = batch(vec![("id", Arc::new(Int64Array::from(noise)) as ArrayRef)]);
    let sink = ParquetSink {
        row_group_bytes: 256 << 10,
        file_bytes: 1 << 20,
        ..sink(text(&out), WriteMode::Error)
    };
    let summary = write_run(&sink, std::slice::from_ref(&made)).await.unwrap();
    assert!((3..=5).contains(&summary.files.len()), "{}", summary.files.len());
    for file in &summary.files[..summary.files.len() - 1] {
        assert!((1 << 20..(1 << 20) + (400 << 10)).contains(&file.bytes), "{}", file.bytes);
    }
    let dataset = Dataset::open(&source(&[text(&out)])).await.unwrap();
    for file in &dataset.files {
        let groups = file.summary().row_groups;
        assert!(groups.iter().all(|g| g.compressed < 320 << 10), "{groups:?}");
        assert!(file.summary().page_index);
    }
    assert_eq!(read_all(&source(&[text(&out)])).await.unwrap(), made);
}

#[tokio::test]
async fn a_run_without_rows_keeps_the_schema() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let writer =
        ParquetWriter::create(&sink(text(&out), WriteMode::Error), int_schema()).await.unwrap();
    let summary = writer.commit().await.unwrap();
    assert_eq!((summary.rows, summary.files.len()), (0, 1));
    let got = read_all(&source(&[text(&out)])).await.unwrap();
    assert_eq!((got.num_rows(), got.schema()), (0, int_schema()));
}

#[tokio::test]
async fn modes_treat_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let at = text(&out);
    write_run(&sink(at, WriteMode::Error), &[numbered(0, 10)]).await.unwrap();
    let e = write_run(&sink(at, WriteMode::Error), &[numbered(0, 10)]).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AlreadyExists);
    assert!(e.hint().unwrap().contains("overwrite") && e.message().contains("out"), "{e:?}");

    write_run(&sink(at, WriteMode::Append), &[numbered(10, 5)]).await.unwrap();
    let mut got = ids(&read_all(&source(&[at])).await.unwrap());
    got.sort_unstable();
    assert_eq!(got, (0..15).collect::<Vec<_>>());
    let other =
        batch(vec![("id", Arc::new(arrow::array::StringArray::from(vec!["x"])) as ArrayRef)]);
    let e = write_run(&sink(at, WriteMode::Append), &[other]).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Schema);

    let summary = write_run(&sink(at, WriteMode::Overwrite), &[numbered(100, 3)]).await.unwrap();
    assert_eq!(summary.replaced, 2);
    assert_eq!(ids(&read_all(&source(&[at])).await.unwrap()), [100, 101, 102]);
    assert_eq!(visible(&out).len(), 1);

    // A folder of somebody else's files.
    let plain = dir.path().join("plain");
    write(&plain.join("k=1/theirs.parquet"), &numbered(0, 4));
    let e = write_run(&sink(text(&plain), WriteMode::Error), &[numbered(0, 1)]).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AlreadyExists);
    assert!(!plain.join("_forebay").exists(), "nothing is left of a refused run");
    let over = sink(text(&plain), WriteMode::Overwrite);
    let e = write_run(&over, &[numbered(7, 1)]).await.unwrap_err();
    assert!(e.message().contains("1 Parquet files in subfolders"), "{e}");
    assert!(!plain.join("_forebay").exists() && plain.join("k=1/theirs.parquet").exists());
    std::fs::rename(plain.join("k=1/theirs.parquet"), plain.join("theirs.parquet")).unwrap();
    assert_eq!(write_run(&over, &[numbered(7, 1)]).await.unwrap().replaced, 1);
    assert_eq!(ids(&read_all(&source(&[text(&plain)])).await.unwrap()), [7]);
    assert!(!plain.join("theirs.parquet").exists());
    // A file in the place of the folder.
    let file = dir.path().join("file.parquet");
    write(&file, &numbered(0, 1));
    assert!(write_run(&sink(text(&file), WriteMode::Overwrite), &[numbered(0, 1)]).await.is_err());
}

#[tokio::test]
async fn an_aborted_run_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let mut writer =
        ParquetWriter::create(&sink(text(&out), WriteMode::Error), int_schema()).await.unwrap();
    writer.write(&numbered(0, 1000)).unwrap();
    writer.ship().await.unwrap();
    let left = writer.abort().await;
    assert_eq!(left.to_string(), "nothing was left behind");
    assert!(!out.exists());
    // Dropped without a word: the same.
    let writer =
        ParquetWriter::create(&sink(text(&out), WriteMode::Error), int_schema()).await.unwrap();
    drop(writer);
    assert!(!out.exists());
}

#[tokio::test]
async fn s7_of_two_writers_one_wins_and_readers_see_all_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let at = text(&out);
    for mode in [WriteMode::Error, WriteMode::Overwrite, WriteMode::Append] {
        let mut a = ParquetWriter::create(&sink(at, mode), int_schema()).await.unwrap();
        let mut b = ParquetWriter::create(&sink(at, mode), int_schema()).await.unwrap();
        a.write(&numbered(0, 10)).unwrap();
        b.write(&numbered(50, 10)).unwrap();
        let (a, b) = tokio::join!(a.commit(), b.commit());
        let e = match (a, b) {
            (Ok(_), Err(e)) | (Err(e), Ok(_)) => e,
            other => panic!("{other:?}"),
        };
        assert!(matches!(e.kind(), ErrorKind::AlreadyExists | ErrorKind::Changed), "{e}");
        assert!(e.message().contains("another run committed"), "{e}");
    }
    // Error: 10 rows; overwrite: 10 rows; append: 10 more. Whole runs only.
    assert_eq!(read_all(&source(&[at])).await.unwrap().num_rows(), 20);
    assert_eq!(visible(&out).len(), 2, "the losers' files are gone");
}

#[tokio::test]
async fn a_dead_runs_staging_never_counts_and_is_swept() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let first = write_run(&sink(text(&out), WriteMode::Error), &[numbered(0, 10)]).await.unwrap();
    // As a killed run leaves it: owner of this kernel, lock free.
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let left = |run: &str, boot: &str| {
        let staging = out.join("_forebay").join(run);
        std::fs::create_dir_all(&staging).unwrap();
        let owner = format!("{{\"boot_id\": {:?}, \"pid\": 1}}", boot.trim());
        std::fs::write(staging.join("owner.json"), owner).unwrap();
        std::fs::write(staging.join("lock"), "").unwrap();
        staging
    };
    let dead = left("deadbeef0000", &boot);
    write(&dead.join("part-00000-deadbeef0000.parquet"), &numbered(99, 1));
    // It died in the middle of its commit.
    let renamed = out.join("part-00001-deadbeef0000.parquet");
    write(&renamed, &numbered(98, 1));
    // This one had committed, and died before it removed its staging.
    let committed = first.files[0].uri.rsplit('-').next().unwrap().trim_end_matches(".parquet");
    let done = left(committed, &boot);
    // Another machine's, which may be alive.
    let theirs = left("feedface0000", "another kernel");
    let their_file = out.join("part-00000-feedface0000.parquet");
    write(&their_file, &numbered(97, 1));
    assert_eq!(read_all(&source(&[text(&out)])).await.unwrap().num_rows(), 10);
    // A run of this machine that is alive keeps its staging, too.
    let alive =
        ParquetWriter::create(&sink(text(&out), WriteMode::Append), int_schema()).await.unwrap();
    assert!(!dead.exists() && !renamed.exists() && !done.exists());
    let last = write_run(&sink(text(&out), WriteMode::Append), &[numbered(10, 1)]).await.unwrap();
    assert_eq!(last.rows, 1);
    assert!(theirs.exists() && their_file.exists());
    let e = alive.commit().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Changed);
    assert_eq!(read_all(&source(&[text(&out)])).await.unwrap().num_rows(), 11);
}

#[tokio::test]
async fn files_that_a_manifest_does_not_list_are_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let summary = write_run(&sink(text(&out), WriteMode::Error), &[numbered(0, 10)]).await.unwrap();
    write(&out.join("stray.parquet"), &numbered(99, 1));
    assert_eq!(read_all(&source(&[text(&out)])).await.unwrap().num_rows(), 10);
    // The folder above: the manifest speaks for its own folder.
    write(&dir.path().join("more.parquet"), &numbered(50, 1));
    assert_eq!(read_all(&source(&[text(dir.path())])).await.unwrap().num_rows(), 11);
    // A listed file that is gone or another one.
    std::fs::write(&summary.files[0].uri, b"short").unwrap();
    assert_eq!(read_all(&source(&[text(&out)])).await.unwrap_err().kind(), ErrorKind::Changed);
    std::fs::remove_file(&summary.files[0].uri).unwrap();
    let e = read_all(&source(&[text(&out)])).await.unwrap_err();
    assert!(e.message().contains("in its manifest, and it is missing"), "{e}");
    // Which an overwrite repairs.
    write_run(&sink(text(&out), WriteMode::Overwrite), &[numbered(0, 2)]).await.unwrap();
    assert_eq!(read_all(&source(&[text(&out)])).await.unwrap().num_rows(), 2);
}

#[tokio::test]
async fn a_full_disk_is_a_clear_error_without_output() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs", text(&disk)])
        .output()
        .is_ok_and(|o| o.status.success());
    if !mounted {
        eprintln!("skipped: this user may not mount a small disk");
        return;
    }
    struct Unmount(PathBuf);
    impl Drop for Unmount {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg(&self.0).output();
        }
    }
    let _unmount = Unmount(disk.clone());
    let out = disk.join("out");
    let mut writer = ParquetWriter::create(
        &ParquetSink {
            row_group_bytes: 64 << 10,
            compression_level: 1,
            ..sink(text(&out), WriteMode::Error)
        },
        int_schema(),
    )
    .await
    .unwrap();
    let mut failure = None;
    for i in 0..200 {
        writer.write(&numbered(i * 100_000, 100_000)).unwrap();
        if let Err(e) = writer.ship().await {
            failure = Some(e);
            break;
        }
    }
    let e = failure.expect("the disk holds 1 MiB");
    assert_eq!(e.kind(), ErrorKind::Resource);
    assert!(e.message().contains("the disk is full"), "{e}");
    assert!(writer.write(&numbered(0, 1)).is_err(), "a failed run stays failed");
    assert!(writer.abort().await.paths.is_empty());
    assert!(visible(&disk).is_empty());
}
