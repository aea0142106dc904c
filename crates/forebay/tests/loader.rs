//! The loader over real files: order, exactness, failure and clean-up, without Python.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use forebay::{
    Batch, ByteBudget, Column, Dataset, EpochEnd, ErrorKind, Loader, LoaderOptions, Shuffle,
    no_tick,
};

/// Files of `rows` rows each in row groups of `group` rows: `id` counts over all files, `x` is null
/// in every seventh row, `name` is a text.
fn files(folder: &Path, rows: &[usize], group: usize) {
    let mut next = 0i64;
    for (n, rows) in rows.iter().enumerate() {
        let ids: Vec<i64> = (next..next + *rows as i64).collect();
        next += *rows as i64;
        let x = ids.iter().map(|i| (i % 7 != 0).then_some(*i as f64 / 2.0));
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("id", Arc::new(Int64Array::from(ids.clone()))),
            ("x", Arc::new(x.collect::<Float64Array>())),
            (
                "name",
                Arc::new(ids.iter().map(|i| Some(format!("row {i}"))).collect::<StringArray>()),
            ),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let properties = parquet::file::properties::WriterProperties::builder()
            .set_max_row_group_row_count(Some(group))
            .build();
        let file = std::fs::File::create(folder.join(format!("part-{n}.parquet"))).unwrap();
        let mut writer =
            parquet::arrow::ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }
}

fn ids(batch: &Batch) -> Vec<i64> {
    let Some(Column::Dense(id)) = batch.column("id") else { panic!("id is dense") };
    id.bytes().as_chunks::<8>().0.iter().map(|b| i64::from_ne_bytes(*b)).collect()
}

fn dataset(folder: &Path) -> Dataset {
    Dataset::read_parquet([folder.display().to_string()]).unwrap()
}

fn options(batch: u64) -> LoaderOptions {
    let mut options = LoaderOptions::new(batch);
    options.fill = Some(forebay::plan::PerColumn::All(forebay::plan::Fill::Float(-1.0)));
    options
}

#[test]
fn every_row_once_and_the_same_for_any_threads_and_prefetch() {
    let folder = tempfile::tempdir().unwrap();
    files(folder.path(), &[103, 0, 57, 200], 16);
    let ds = dataset(folder.path());
    for (lanes, window) in
        [(None, None), (Some(1), Some(3)), (Some(4), Some(1)), (Some(5), Some(2))]
    {
        let mut first = None;
        for (threads, prefetch) in [(1, 1), (2, 4), (4, 16)] {
            let mut o = options(12);
            o.epoch_end = Some(EpochEnd::Partial);
            (o.lanes, o.window) = (lanes, window);
            (o.num_threads, o.prefetch) = (Some(threads), Some(prefetch));
            let loader = ds.loader(&o).unwrap();
            assert_eq!(loader.len(), 30);
            let got: Vec<Vec<i64>> = loader.iter().unwrap().map(|b| ids(&b.unwrap())).collect();
            let mut all: Vec<i64> = got.concat();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..360));
            assert_eq!(&got, first.get_or_insert_with(|| got.clone()));
            assert_eq!(loader.epoch(), 1);
            let second: Vec<Vec<i64>> = loader.iter().unwrap().map(|b| ids(&b.unwrap())).collect();
            assert_ne!(got, second);
        }
    }
}

#[test]
fn ranks_share_the_global_batches() {
    let folder = tempfile::tempdir().unwrap();
    files(folder.path(), &[100], 9);
    let ds = dataset(folder.path());
    let run = |rank: u64, world: u64| -> Vec<Vec<i64>> {
        let mut o = options(1);
        o.batch = forebay::BatchSize::Global(12);
        (o.rank, o.world_size, o.lanes, o.window) = (Some(rank), Some(world), Some(4), Some(2));
        ds.loader(&o).unwrap().iter().unwrap().map(|b| ids(&b.unwrap())).collect()
    };
    let alone = run(0, 1);
    for world in [2u64, 3, 4, 6] {
        let ranks: Vec<Vec<Vec<i64>>> = (0..world).map(|r| run(r, world)).collect();
        let together: Vec<Vec<i64>> =
            (0..alone.len()).map(|s| ranks.iter().flat_map(|r| r[s].clone()).collect()).collect();
        assert_eq!(together, alone, "world size {world}");
    }
}

#[test]
fn filters_and_limits_count_exactly() {
    let folder = tempfile::tempdir().unwrap();
    files(folder.path(), &[50, 50], 8);
    let ds = dataset(folder.path());
    let some = ds.filter("id % 3 = 0").unwrap().with_column("twice", "id * 2").unwrap();
    assert_eq!(some.count().unwrap(), 34);
    let mut o = options(10);
    o.shuffle = Shuffle::None;
    let got: Vec<i64> = some
        .limit(15)
        .unwrap()
        .loader(&o)
        .unwrap()
        .iter()
        .unwrap()
        .flat_map(|b| ids(&b.unwrap()))
        .collect();
    assert!(got.into_iter().eq((0..15).map(|i| i * 3)));
    assert_eq!(ds.limit(7).unwrap().count().unwrap(), 7);
    assert_eq!(ds.limit(0).unwrap().loader(&o).unwrap().len(), 0);
}

#[test]
fn a_null_without_fill_names_file_row_and_column() {
    let folder = tempfile::tempdir().unwrap();
    files(folder.path(), &[10, 20], 4);
    let ds = dataset(folder.path()).filter("id > 14").unwrap();
    let mut o = LoaderOptions::new(4);
    o.shuffle = Shuffle::None;
    let error = ds.loader(&o).unwrap().iter().unwrap().find_map(Result::err).unwrap();
    // The first null after row 14 is id 21, which is row 11 of the second file.
    let place = error.location();
    assert!(place.file.as_deref().unwrap().ends_with("part-1.parquet"));
    assert_eq!(
        (place.row_group, place.row, place.column.as_deref()),
        (Some(2), Some(11), Some("x"))
    );
    assert!(error.hint().unwrap().contains("x IS NOT NULL"));
}

#[test]
fn dropping_an_epoch_gives_everything_back() {
    let folder = tempfile::tempdir().unwrap();
    files(folder.path(), &[5000, 5000], 100);
    let budget = ByteBudget::new(64 << 20);
    let loader = Loader::open(&dataset(folder.path()), &options(8), &budget, &mut no_tick).unwrap();
    for _ in 0..20 {
        let mut epoch = loader.iter().unwrap();
        let batch = epoch.next().unwrap().unwrap();
        drop(epoch);
        assert_eq!(ids(&batch).len(), 8);
        drop(batch);
    }
    drop(loader);
    // Aborted tasks let go of their memory when the runtime next looks at them.
    let deadline = Instant::now() + Duration::from_secs(10);
    while (budget.used(), budget.accounts()) != (0, 0) {
        assert!(Instant::now() < deadline, "{} bytes are still reserved", budget.used());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_budget_smaller_than_a_block_still_delivers() {
    let folder = tempfile::tempdir().unwrap();
    files(folder.path(), &[3000], 1000);
    let budget = ByteBudget::new(1000);
    let mut o = options(64);
    o.shuffle = Shuffle::None;
    o.num_threads = Some(2);
    let loader = Loader::open(&dataset(folder.path()), &o, &budget, &mut no_tick).unwrap();
    let rows: usize = loader.iter().unwrap().map(|b| b.unwrap().rows).sum();
    assert_eq!(rows, 3000);
    // The shuffle says before the first batch that it does not fit, and what would.
    o.shuffle = Shuffle::Window;
    o.batch = forebay::BatchSize::Rank(4);
    let error = Loader::open(&dataset(folder.path()), &o, &budget, &mut no_tick).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Resource);
    assert!(error.hint().unwrap().contains("memory_limit="), "{}", error.report());
    o.batch = forebay::BatchSize::Rank(1 << 31);
    let error = Loader::open(&dataset(folder.path()), &o, &budget, &mut no_tick).err().unwrap();
    assert!(error.hint().unwrap().contains("batch_size"), "{}", error.report());
}

/// What is numbered below the head of the line never waits for memory: a later epoch must not begin
/// below where the one before has left it.
#[test]
fn a_later_epoch_keeps_within_the_memory_as_the_first_does() {
    let folder = tempfile::tempdir().unwrap();
    files(folder.path(), &[200_000], 1000);
    let mut o = options(1000);
    (o.lanes, o.window, o.prefetch, o.memory_limit) = (Some(2), Some(1), Some(1), Some(1 << 20));
    let loader = dataset(folder.path()).loader(&o).unwrap();
    for _ in 0..3 {
        let mut epoch = loader.iter().unwrap();
        epoch.next().unwrap().unwrap();
        // Time to run ahead, as far as the memory lets it.
        std::thread::sleep(Duration::from_millis(300));
        assert!(loader.account().used() <= 1 << 20, "{} bytes", loader.account().used());
        assert_eq!(epoch.count(), 199);
    }
}

#[test]
fn holding_every_batch_ends_in_an_error_that_counts_them() {
    let folder = tempfile::tempdir().unwrap();
    files(folder.path(), &[4000], 1000);
    let budget = ByteBudget::new(8_000);
    let mut o = options(100);
    o.shuffle = Shuffle::None;
    let ds = dataset(folder.path()).select(["id"]).unwrap();
    let loader = Loader::open(&ds, &o, &budget, &mut no_tick).unwrap();
    let mut held = Vec::new();
    let error = loader.iter().unwrap().find_map(|b| match b {
        Ok(batch) => {
            held.push(batch);
            None
        }
        Err(e) => Some(e),
    });
    let error = error.expect("8,000 bytes hold ten batches");
    assert_eq!(error.kind(), ErrorKind::Resource);
    assert!(error.message().contains("holds"), "{}", error.report());
    held.clear();
    assert_eq!(loader.iter().unwrap().map(|b| b.unwrap().rows).sum::<usize>(), 4000);
}

#[test]
fn what_is_on_its_way_is_counted_and_the_wait_for_a_loop_that_stands_still() {
    let folder = tempfile::tempdir().unwrap();
    files(folder.path(), &[400], 50);
    let mut o = options(20);
    o.prefetch = Some(3);
    let loader = dataset(folder.path()).loader(&o).unwrap();
    let (stats, queue) = (loader.stats(), &loader.stats().queue);
    let count = |n: &std::sync::atomic::AtomicU64| n.load(std::sync::atomic::Ordering::Relaxed);
    let mut epoch = loader.iter().unwrap();
    let batch = epoch.next().unwrap().unwrap();
    assert_eq!((count(&stats.batches), count(&stats.rows_out)), (1, 20));
    assert_eq!(count(&stats.batch_bytes), batch.byte_len());
    assert!(batch.byte_len() >= 20 * (8 + 8));

    // All three are made, and wait; so does the engine, from then on.
    let start = Instant::now();
    while queue.ready() < 3 || queue.waited().seconds() == 0.0 {
        assert!(start.elapsed() < Duration::from_secs(60), "{queue:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!((queue.making(), queue.ready()), (0, 3));
    assert!(queue.waited().seconds() <= start.elapsed().as_secs_f64() + 1.0);
    drop(epoch);
    assert_eq!((queue.making(), queue.ready()), (0, 0));
}
