//! Files that are not what they should be: a clear error, never a panic, a hang or a large
//! allocation.

use std::path::Path;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind};
use forebay_io::{BlockReader, Dataset};
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

use crate::files::*;

async fn error_of(path: &Path) -> Error {
    read_all(&source(&[text(path)])).await.unwrap_err()
}

#[tokio::test]
async fn files_that_are_not_parquet_say_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let cases: [(&str, &[u8], ErrorKind, &str); 6] = [
        ("empty.parquet", b"", ErrorKind::Corrupt, "is empty (0 bytes)"),
        ("tiny.parquet", b"PAR1", ErrorKind::Corrupt, "is not a Parquet file"),
        ("text.parquet", b"id,name\n1,a\n2,b\n3,c\n", ErrorKind::Corrupt, "is not a Parquet file"),
        ("ipc.parquet", b"ARROW1\0\0........ARROW1", ErrorKind::Corrupt, "an Arrow IPC file"),
        ("gz.parquet", b"\x1f\x8b\x08\0aaaaaaaaaaaaaaaaaaa", ErrorKind::Corrupt, "gzip"),
        ("enc.parquet", b"PARE.......................PARE", ErrorKind::Unsupported, "is encrypted"),
    ];
    for (name, bytes, kind, what) in cases {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let e = error_of(&path).await;
        assert_eq!(e.kind(), kind, "{e}");
        assert!(e.message().contains(what) && e.to_string().contains(name), "{e}");
    }
}

fn sample() -> Vec<u8> {
    let made = numbered(0, 400);
    let props = WriterProperties::builder()
        .set_compression(Compression::ZSTD(Default::default()))
        .set_max_row_group_row_count(Some(150))
        .set_data_page_row_count_limit(50)
        .set_write_batch_size(50)
        .build();
    encode(&made.schema(), std::slice::from_ref(&made), props)
}

#[tokio::test]
async fn every_truncation_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let good = sample();
    let path = dir.path().join("cut.parquet");
    for len in (0..good.len()).step_by(97) {
        std::fs::write(&path, &good[..len]).unwrap();
        let e = error_of(&path).await;
        assert!(matches!(e.kind(), ErrorKind::Corrupt), "{len}: {e:?}");
        assert!(e.to_string().contains("cut.parquet"), "{e}");
        if len > 12 && len < 60_000 {
            assert!(e.message().contains("is truncated"), "{e}");
        }
    }
}

/// Damages single bytes all over the file. Anything but a panic, a hang or a large allocation is
/// right: most flips are errors, some are other data (there are no checksums in this file).
#[tokio::test]
async fn damaged_bytes_never_panic() {
    let dir = tempfile::tempdir().unwrap();
    let good = sample();
    let path = dir.path().join("bent.parquet");
    let mut errors = 0;
    for at in 0..good.len() {
        // Every byte of the footer, some of the pages.
        if at < good.len() * 2 / 3 && at % 41 != 0 {
            continue;
        }
        for with in [0xff, 0x01] {
            let mut bad = good.clone();
            bad[at] ^= with;
            std::fs::write(&path, &bad).unwrap();
            errors += u32::from(read_all(&source(&[text(&path)])).await.is_err());
        }
    }
    assert!(errors > 100, "{errors}");
    assert!(peak_kib() < 2 << 20, "{} MiB", peak_kib() >> 10);
}

/// Peak resident memory of this process, in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.trim().parse().ok())
        .unwrap_or(0)
}

#[tokio::test]
async fn a_decode_error_names_file_row_group_and_column() {
    let dir = tempfile::tempdir().unwrap();
    let made = numbered(0, 300);
    let props = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_max_row_group_row_count(Some(100))
        .set_dictionary_enabled(false)
        .build();
    let mut bytes = encode(&made.schema(), std::slice::from_ref(&made), props);
    let path = dir.path().join("hurt.parquet");
    std::fs::write(&path, &bytes).unwrap();
    let dataset = Dataset::open(&source(&[text(&path)])).await.unwrap();
    // The middle of column `name` of row group 1.
    let column = dataset.files[0].metadata.row_group(1).column(1);
    let at = (column.data_page_offset() + column.compressed_size() / 2) as usize;
    for byte in &mut bytes[at..at + 40] {
        *byte = 0xff;
    }
    std::fs::write(&path, &bytes).unwrap();
    let dataset = Arc::new(Dataset::open(&source(&[text(&path)])).await.unwrap());
    let reader = BlockReader::all(dataset).unwrap();
    reader.decode(reader.fetch(0, None).await.unwrap()).unwrap();
    let e = reader.decode(reader.fetch(1, None).await.unwrap()).unwrap_err();
    let at = e.location();
    assert_eq!(e.kind(), ErrorKind::Corrupt);
    assert_eq!((at.row_group, at.column.as_deref()), (Some(1), Some("name")));
    assert!(at.file.as_deref().unwrap().ends_with("hurt.parquet"));
    // The other column is whole.
    let id = BlockReader::new(reader.dataset().clone(), &["id".into()]).unwrap();
    assert_eq!(read_blocks(&id).await.unwrap().num_rows(), 300);
}

#[tokio::test]
async fn unreadable_files_are_permission_errors() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    write(&path, &numbered(0, 3));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    if std::fs::File::open(&path).is_ok() {
        eprintln!("skipped: this user may read everything");
        return;
    }
    assert_eq!(error_of(&path).await.kind(), ErrorKind::PermissionDenied);
}
