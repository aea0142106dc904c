//! The whole path against a real S3 server, configured as users do it: by AWS variables.
//!
//! The variables belong to a process, so the outer test starts the server and runs the inner ones,
//! which are ignored otherwise, in processes of their own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_core::ErrorKind;
use forebay_io::store::s3_store;
use forebay_io::{BlockReader, Dataset, ParquetWriter};
use forebay_plan::{ParquetSink, ParquetSource, StorageOptions, WriteMode};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::files::*;
use crate::s3_server::{POWERLESS_KEY, READER_KEY, S3Server};
use crate::write::{sink, write_run};

fn inner(name: &str, vars: &[(&str, String)]) {
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env("FOREBAY_INNER", "1")
        .envs(vars.iter().map(|(k, v)| (*k, v)))
        .status()
        .unwrap();
    assert!(status.success(), "{name} failed");
}

#[test]
fn a_real_server() {
    let Some(server) = S3Server::start() else { return };
    server.create_bucket("data");
    let env = server.env();
    inner("s3::inner_reads_and_writes", &env);
    let mut wrong = env.clone();
    wrong[2].1 = "not-the-secret".into();
    inner("s3::inner_wrong_secret", &wrong);
    let with_key = |key: &str| {
        let mut env = env.clone();
        env[1].1 = key.into();
        env
    };
    inner("s3::inner_unknown_key", &with_key("nobody"));
    inner("s3::inner_known_key_without_rights", &with_key(POWERLESS_KEY));
    inner("s3::inner_known_key_that_may_only_read", &with_key(READER_KEY));
}

fn raw_store() -> Arc<dyn ObjectStore> {
    s3_store("data", &StorageOptions::default(), &|name| std::env::var(name).ok()).unwrap()
}

async fn keys(prefix: &str) -> Vec<String> {
    let all: Vec<_> = raw_store().list(Some(&Path::from(prefix))).try_collect().await.unwrap();
    let mut keys: Vec<String> = all.into_iter().map(|m| m.location.to_string()).collect();
    keys.sort();
    keys
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by a_real_server"]
async fn inner_reads_and_writes() {
    if std::env::var_os("FOREBAY_INNER").is_none() {
        return;
    }
    let store = raw_store();
    for (i, key) in ["t/y=1/a b.parquet", "t/y=x%2Fz/b.parquet", "t/_x/c.parquet", "t/d.parquet"]
        .iter()
        .enumerate()
    {
        let bytes = encode(&int_schema(), &[numbered(i as i64 * 10, 2)], Default::default());
        store.put(&Path::parse(key).unwrap(), bytes.into()).await.unwrap();
    }
    // List, glob, read.
    let read = async |uri: &str| read_all(&source(&[uri])).await.map(|b| ids(&b));
    assert_eq!(read("s3://data/t").await.unwrap(), [30, 31, 0, 1, 10, 11]);
    assert_eq!(read("s3://data/t/*/*.parquet").await.unwrap(), [0, 1, 10, 11]);
    assert_eq!(read("s3://data/t/d.parquet").await.unwrap(), [30, 31]);
    let got = read_all(&source(&["s3://data/t/*/*.parquet"])).await.unwrap();
    let y = arrow::array::AsArray::as_string::<i32>(got.column_by_name("y").unwrap().as_ref());
    assert_eq!((y.value(0), y.value(2)), ("1", "x/z"));

    // The endpoint as an option, and its own words for what is missing.
    let with = ParquetSource {
        uri: vec!["s3://data/t/d.parquet".into()],
        storage: StorageOptions {
            endpoint: std::env::var("AWS_ENDPOINT_URL").ok(),
            ..Default::default()
        },
        ..Default::default()
    };
    assert_eq!(Dataset::open(&with).await.unwrap().rows(), 2);
    let e = read("s3://nowhere/t").await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound);
    assert!(e.message().contains("s3://nowhere"), "{e}");
    let e = read("s3://data/t/dd.parquet").await.unwrap_err();
    assert!(e.hint().unwrap().contains("s3://data/t/d.parquet"), "{e:?}");

    // Ranged reads of a file of several parts, and a pin.
    let rows = 400_000;
    let to = ParquetSink { row_group_bytes: 12 << 20, ..sink("s3://data/out", WriteMode::Error) };
    let mut writer = ParquetWriter::create(&to, noise(0, 1).schema()).await.unwrap();
    for i in 0..4 {
        writer.write(&noise(i * rows / 4, rows / 4)).unwrap();
        writer.ship().await.unwrap();
    }
    assert!(keys("out").await.is_empty(), "nothing is visible before the commit");
    let summary = writer.commit().await.unwrap();
    assert!(summary.bytes > 20 << 20, "{} bytes are more than one part", summary.bytes);
    assert_eq!(keys("out").await.len(), summary.files.len() + 1);
    let dataset = Arc::new(Dataset::open(&source(&["s3://data/out"])).await.unwrap());
    assert_eq!(dataset.rows(), rows as u64);
    let all = BlockReader::all(dataset.clone()).unwrap();
    let got = read_blocks(&all).await.unwrap();
    assert_eq!(got, noise(0, rows));
    let one = BlockReader::new(dataset.clone(), &["id".into()]).unwrap();
    assert!(one.cost(0).fetch < all.cost(0).fetch / 2);
    let fetched = one.fetch(0, None).await.unwrap();
    assert!(fetched.bytes() < all.cost(0).fetch / 2, "only the needed column is fetched");

    // An aborted run, a lost race, an overwrite.
    let mut gone = ParquetWriter::create(&sink("s3://data/gone", WriteMode::Error), int_schema())
        .await
        .unwrap();
    gone.write(&numbered(0, 1000)).unwrap();
    gone.ship().await.unwrap();
    assert!(gone.abort().await.paths.is_empty());
    assert!(keys("gone").await.is_empty());
    for mode in [WriteMode::Error, WriteMode::Append] {
        let mut a =
            ParquetWriter::create(&sink("s3://data/race", mode), int_schema()).await.unwrap();
        let mut b =
            ParquetWriter::create(&sink("s3://data/race", mode), int_schema()).await.unwrap();
        a.write(&numbered(0, 10)).unwrap();
        b.write(&numbered(50, 10)).unwrap();
        a.commit().await.unwrap();
        let e = b.commit().await.unwrap_err();
        assert!(e.message().contains("another run committed"), "{e:?}");
    }
    assert_eq!(keys("race").await.len(), 3);
    let e =
        write_run(&sink("s3://data/race", WriteMode::Error), &[numbered(0, 1)]).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AlreadyExists);
    write_run(&sink("s3://data/race", WriteMode::Overwrite), &[numbered(5, 1)]).await.unwrap();
    assert_eq!(ids(&read_all(&source(&["s3://data/race"])).await.unwrap()), [5]);
    assert_eq!(keys("race").await.len(), 2);
    let e = write_run(&sink("s3://nowhere/out", WriteMode::Error), &[numbered(5, 1)])
        .await
        .unwrap_err();
    assert!(e.message().contains("s3://nowhere"), "{e:?}");

    // An object that is replaced under a reader.
    let bytes = encode(&int_schema(), &[numbered(0, 7)], Default::default());
    store.put(&Path::from("t/d.parquet"), bytes.into()).await.unwrap();
    let dataset = Arc::new(Dataset::open(&source(&["s3://data/t/d.parquet"])).await.unwrap());
    let bytes = encode(&int_schema(), &[numbered(1, 7)], Default::default());
    store.put(&Path::from("t/d.parquet"), bytes.into()).await.unwrap();
    let e = BlockReader::all(dataset).unwrap().fetch(0, None).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Changed);
    assert!(e.to_string().contains("s3://data/t/d.parquet"), "{e}");
}

/// Numbers that do not compress.
fn noise(first: i64, rows: i64) -> arrow::array::RecordBatch {
    use arrow::array::{ArrayRef, Int64Array};
    let mix = |x: i64, k: u64| {
        let mut z = (x as u64).wrapping_add(k).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (z ^ (z >> 27)) as i64
    };
    let column = |k: u64| {
        Arc::new(Int64Array::from_iter_values((first..first + rows).map(|x| mix(x, k)))) as ArrayRef
    };
    batch(vec![
        ("id", Arc::new(Int64Array::from_iter_values(first..first + rows)) as ArrayRef),
        ("a", column(1)),
        ("b", column(2)),
        ("c", column(3)),
        ("d", column(4)),
        ("e", column(5)),
        ("f", column(6)),
        ("g", column(7)),
    ])
}

async fn refused() {
    let begun = Instant::now();
    for uri in ["s3://data/t/d.parquet", "s3://data/t"] {
        let e = Dataset::open(&source(&[uri])).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e:?}");
        assert!(e.message().contains("s3://data/t"), "{e}");
        let shown = format!("{e:?} {}", e.report());
        for secret in ["not-the-secret", crate::s3_server::SECRET_KEY] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }
    let e = write_run(&sink("s3://data/denied", WriteMode::Error), &[numbered(0, 1)])
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e:?}");
    assert!(begun.elapsed() < Duration::from_secs(5), "at once, not after retries");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by a_real_server"]
async fn inner_wrong_secret() {
    if std::env::var_os("FOREBAY_INNER").is_some() {
        refused().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by a_real_server"]
async fn inner_unknown_key() {
    if std::env::var_os("FOREBAY_INNER").is_some() {
        refused().await;
    }
}

/// A refusal of a known key: what was refused, and which rights are missing.
fn lacks_a_right(e: &forebay_core::Error, what: &str) {
    assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e:?}");
    assert!(e.message().contains(what) && e.message().contains("denied"), "{e:?}");
    assert!(e.hint().unwrap().contains("s3:ListBucket"), "{e:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by a_real_server"]
async fn inner_known_key_without_rights() {
    if std::env::var_os("FOREBAY_INNER").is_none() {
        return;
    }
    let begun = Instant::now();
    for uri in ["s3://data/t/d.parquet", "s3://data/t", "s3://data/t/*.parquet"] {
        let e = Dataset::open(&source(&[uri])).await.unwrap_err();
        lacks_a_right(&e, "s3://data/t");
    }
    let to = sink("s3://data/denied", WriteMode::Error);
    lacks_a_right(&write_run(&to, &[numbered(0, 1)]).await.unwrap_err(), "s3://data/denied");
    assert!(begun.elapsed() < Duration::from_secs(5), "at once, not after retries");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by a_real_server"]
async fn inner_known_key_that_may_only_read() {
    if std::env::var_os("FOREBAY_INNER").is_none() {
        return;
    }
    // Reading is allowed; the upload of the first file is refused.
    assert_eq!(read_all(&source(&["s3://data/t/d.parquet"])).await.unwrap().num_rows(), 7);
    let to = sink("s3://data/denied", WriteMode::Error);
    let e = write_run(&to, &[numbered(0, 1)]).await.unwrap_err();
    lacks_a_right(&e, "s3://data/denied/part-00000");
    // Files may be written here, and the manifest may not.
    let to = sink("s3://data/some", WriteMode::Error);
    let e = write_run(&to, &[numbered(0, 1)]).await.unwrap_err();
    lacks_a_right(&e, "s3://data/some/_forebay/manifest.json");
    for prefix in ["denied", "some"] {
        assert!(keys(prefix).await.is_empty(), "nothing of a refused run is visible");
    }
}
