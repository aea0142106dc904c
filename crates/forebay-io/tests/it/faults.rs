//! Reads that fail, through the fault-injecting store.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, BinaryArray, RecordBatch};
use forebay_core::ErrorKind;
use forebay_io::store::fault::{Fault, FaultStore};
use forebay_io::store::register;
use forebay_io::{BlockReader, Dataset, retries};
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use parquet::file::properties::WriterProperties;

use crate::files::*;

/// A bucket of two files, one of them with a column of 11 MiB, and faults on demand.
async fn faulty(root: &str) -> (Arc<FaultStore>, RecordBatch, Arc<InMemory>) {
    let inner = Arc::new(InMemory::new());
    let store = Arc::new(FaultStore::new(inner.clone()));
    let blobs: Vec<Vec<u8>> = (0..1_200u32)
        .map(|i| {
            (0..2_600u32)
                .flat_map(|j| (i.wrapping_mul(2654435761) ^ j.wrapping_mul(40503)).to_le_bytes())
                .collect()
        })
        .collect();
    let mut whole = Vec::new();
    for (name, from, to) in [("a", 0usize, 1_100usize), ("b", 1_100, 1_200)] {
        let part = batch(vec![
            ("id", numbered(from as i64, (to - from) as i64).column(0).clone()),
            ("blob", Arc::new(BinaryArray::from_iter_values(&blobs[from..to])) as ArrayRef),
        ]);
        let props = WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_offset_index_disabled(true)
            .set_statistics_enabled(parquet::file::properties::EnabledStatistics::None)
            .build();
        let bytes = encode(&part.schema(), std::slice::from_ref(&part), props);
        inner.put(&Path::from(format!("d/{name}.parquet")), bytes.into()).await.unwrap();
        whole.push(part);
    }
    register(root, store.clone());
    let whole = arrow::compute::concat_batches(&whole[0].schema(), &whole).unwrap();
    (store, whole, inner)
}

#[tokio::test]
async fn t14_a_read_that_fails_and_is_retried_equals_a_fault_free_read() {
    let (store, whole, _) = faulty("s3://t14").await;
    let source = source(&["s3://t14/d"]);
    assert_eq!(read_all(&source).await.unwrap(), whole);
    for fault in [
        Fault::Break(0),
        Fault::Break(1000),
        Fault::Break(3 << 20),
        Fault::Short(0),
        Fault::Short(5000),
        Fault::Unavailable,
        Fault::Delay(Duration::from_millis(30)),
    ] {
        for skip in [0, 2] {
            store.clear();
            store.inject("", fault, skip, 2);
            let (before, retries) = (store.injected(), Arc::default());
            let read = retries::counted(Arc::clone(&retries), read_all(&source)).await;
            assert_eq!(read.unwrap(), whole, "{fault:?} {skip}");
            let injected = store.injected() - before;
            assert!(injected > 0, "{fault:?} was never injected");
            // A read that is only slow is not made again.
            let again = if matches!(fault, Fault::Delay(_)) { 0 } else { injected };
            assert_eq!(retries.load(Ordering::Relaxed), again, "{fault:?} {skip}");
        }
    }
}

#[tokio::test]
async fn s3_a_body_that_stays_short_is_an_error_with_the_numbers() {
    let (store, _, _) = faulty("s3://short").await;
    let dataset = Arc::new(Dataset::open(&source(&["s3://short/d/b.parquet"])).await.unwrap());
    store.inject("b.parquet", Fault::Short(100), 0, u64::MAX);
    let reader = BlockReader::all(dataset).unwrap();
    let before = store.reads();
    let e = reader.fetch(0, None).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Io);
    assert!(e.message().contains("sent 100 of"), "{e}");
    assert!(
        e.to_string().contains("s3://short/d/b.parquet") && e.location().row_group == Some(0),
        "{e}"
    );
    assert!((2..=8).contains(&(store.reads() - before)), "tried again, and not for ever");
}

#[tokio::test]
async fn s2_denied_reads_fail_at_once() {
    let (store, _, _) = faulty("s3://denied").await;
    store.inject("", Fault::Forbidden, 0, u64::MAX);
    let begun = Instant::now();
    let e = Dataset::open(&source(&["s3://denied/d"])).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::PermissionDenied);
    assert!(e.to_string().contains("s3://denied/d/"), "{e}");
    assert!(begun.elapsed() < Duration::from_millis(500));
    assert!(store.reads() <= 2, "no retries");
}

#[tokio::test]
async fn s11_an_overwritten_object_is_an_error_that_names_it() {
    let (_, _, inner) = faulty("s3://s11").await;
    let dataset = Arc::new(Dataset::open(&source(&["s3://s11/d"])).await.unwrap());
    let reader = BlockReader::all(dataset).unwrap();
    let new = encode(&int_schema(), &[numbered(0, 5)], WriterProperties::default());
    inner.put(&Path::from("d/b.parquet"), new.into()).await.unwrap();
    reader.fetch(0, None).await.unwrap();
    let e = reader.fetch(1, None).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Changed);
    assert!(e.to_string().contains("s3://s11/d/b.parquet"), "{e}");
    inner.delete(&Path::from("d/b.parquet")).await.unwrap();
    let e = reader.fetch(1, None).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Changed);
}

#[tokio::test]
async fn dropping_a_fetch_stops_it() {
    let (store, _, _) = faulty("s3://stop").await;
    let dataset = Arc::new(Dataset::open(&source(&["s3://stop/d"])).await.unwrap());
    let reader = BlockReader::all(dataset).unwrap();
    store.inject("a.parquet", Fault::Hang, 0, 1);
    let hung = tokio::time::timeout(Duration::from_millis(50), reader.fetch(0, None)).await;
    assert!(hung.is_err());
    // Nothing is held by the abandoned read: the next one works.
    assert_eq!(reader.fetch(0, None).await.unwrap().rows(), 1_100);
}
