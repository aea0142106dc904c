//! Writing to object stores, on one in memory.

use std::sync::Arc;

use forebay_core::ErrorKind;
use forebay_io::ParquetWriter;
use forebay_io::store::register;
use forebay_plan::{ParquetSink, WriteMode};
use futures::TryStreamExt;
use object_store::ObjectStore;
use object_store::memory::InMemory;

use crate::files::*;
use crate::write::{sink, write_run};

async fn keys(store: &InMemory) -> Vec<String> {
    let all: Vec<_> = store.list(None).try_collect().await.unwrap();
    let mut keys: Vec<String> = all.into_iter().map(|m| m.location.to_string()).collect();
    keys.sort();
    keys
}

#[tokio::test]
async fn uploads_are_invisible_until_the_commit() {
    let store = Arc::new(InMemory::new());
    register("s3://commit", store.clone());
    let to = sink("s3://commit/out/", WriteMode::Error);
    let to = ParquetSink { row_group_bytes: 64 << 10, file_bytes: 256 << 10, ..to };
    let mut writer = ParquetWriter::create(&to, int_schema()).await.unwrap();
    for i in 0..20 {
        writer.write(&numbered(i * 10_000, 10_000)).unwrap();
        writer.ship().await.unwrap();
        assert!(keys(&store).await.is_empty());
    }
    let summary = writer.commit().await.unwrap();
    assert!(summary.files.len() > 1);
    assert_eq!(summary.manifest, "s3://commit/out/_forebay/manifest.json");
    assert_eq!(keys(&store).await.len(), summary.files.len() + 1);
    let got = read_all(&source(&["s3://commit/out"])).await.unwrap();
    assert_eq!(ids(&got), (0..200_000).collect::<Vec<_>>());

    let e = write_run(&to, &[numbered(0, 1)]).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AlreadyExists);
    write_run(&sink("s3://commit/out", WriteMode::Append), &[numbered(-5, 5)]).await.unwrap();
    assert_eq!(read_all(&source(&["s3://commit/out"])).await.unwrap().num_rows(), 200_005);
    let summary =
        write_run(&sink("s3://commit/out", WriteMode::Overwrite), &[numbered(7, 2)]).await.unwrap();
    assert!(summary.replaced > 2);
    assert_eq!(keys(&store).await.len(), 2);
    assert_eq!(ids(&read_all(&source(&["s3://commit/out"])).await.unwrap()), [7, 8]);
}

#[tokio::test]
async fn s7_of_two_writers_to_a_bucket_one_wins() {
    let store = Arc::new(InMemory::new());
    register("s3://race", store.clone());
    for mode in [WriteMode::Error, WriteMode::Overwrite, WriteMode::Append] {
        let to = sink("s3://race/out", mode);
        let mut a = ParquetWriter::create(&to, int_schema()).await.unwrap();
        let mut b = ParquetWriter::create(&to, int_schema()).await.unwrap();
        a.write(&numbered(0, 10)).unwrap();
        b.write(&numbered(50, 10)).unwrap();
        let (a, b) = tokio::join!(a.commit(), b.commit());
        let e = match (a, b) {
            (Ok(_), Err(e)) | (Err(e), Ok(_)) => e,
            other => panic!("{other:?}"),
        };
        assert!(matches!(e.kind(), ErrorKind::AlreadyExists | ErrorKind::Changed), "{e}");
    }
    assert_eq!(read_all(&source(&["s3://race/out"])).await.unwrap().num_rows(), 20);
    assert_eq!(keys(&store).await.len(), 3, "two files and a manifest");
}

#[tokio::test]
async fn an_aborted_upload_leaves_nothing() {
    let store = Arc::new(InMemory::new());
    register("s3://gone", store.clone());
    let to = sink("s3://gone/out", WriteMode::Error);
    let mut writer = ParquetWriter::create(&to, int_schema()).await.unwrap();
    writer.write(&numbered(0, 1000)).unwrap();
    writer.ship().await.unwrap();
    assert!(writer.abort().await.paths.is_empty());
    assert!(keys(&store).await.is_empty());
}

#[tokio::test]
async fn globs_prefixes_and_missing_keys_on_a_bucket() {
    use object_store::ObjectStoreExt;
    use object_store::path::Path;
    let store = Arc::new(InMemory::new());
    register("s3://list", store.clone());
    for (i, key) in
        ["t/y=1/a.parquet", "t/y=2/b.parquet", "t/_x/c.parquet", "t/notes.txt", "top.parquet"]
            .iter()
            .enumerate()
    {
        let bytes = encode(&int_schema(), &[numbered(i as i64 * 10, 1)], Default::default());
        store.put(&Path::parse(key).unwrap(), bytes.into()).await.unwrap();
    }
    let read = async |uri: &str| read_all(&source(&[uri])).await.map(|b| ids(&b));
    assert_eq!(read("s3://list/t").await.unwrap(), [0, 10]);
    assert_eq!(read("s3://list/t/").await.unwrap(), [0, 10]);
    assert_eq!(read("s3://list/t/y=*/*.parquet").await.unwrap(), [0, 10]);
    assert_eq!(read("s3://list/**/b.parquet").await.unwrap(), [10]);
    assert_eq!(read("s3://list/t/y=[2]").await.unwrap(), [10]);
    assert_eq!(read("s3://list/top.parquet").await.unwrap(), [40]);
    assert_eq!(read("s3://list").await.unwrap(), [0, 10, 40]);
    let e = read("s3://list/tpo.parquet").await.unwrap_err();
    assert_eq!(e.hint(), Some("did you mean \"s3://list/top.parquet\"?"));
    let e = read("s3://list/t/*.csv").await.unwrap_err();
    assert!(e.message().contains("no file matches s3://list/t/*.csv"), "{e}");
    // A prefix is a folder, not the beginning of a name.
    assert!(read("s3://list/to").await.is_err());
}
