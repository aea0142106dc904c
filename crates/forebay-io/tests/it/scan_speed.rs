//! A measurement to run by hand beside pyarrow's dataset scan of the same files:
//! `FOREBAY_SCAN=folder cargo nextest run -p forebay-io --run-ignored only scan_speed`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use forebay_io::{BlockReader, Dataset};

use crate::files::*;

#[test]
#[ignore = "a measurement"]
fn scan() {
    let Ok(folder) = std::env::var("FOREBAY_SCAN") else { return };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let columns: Vec<String> =
        ["dep_time", "dep_delay", "arr_delay", "air_time", "distance", "hour", "minute"]
            .map(str::to_owned)
            .into();
    for threads in [1usize, 2] {
        let mut times = Vec::new();
        for _ in 0..7 {
            let begun = Instant::now();
            let dataset = Arc::new(runtime.block_on(Dataset::open(&source(&[&folder]))).unwrap());
            let opened = begun.elapsed();
            let reader = BlockReader::new(dataset, &columns).unwrap();
            let blocks = reader.dataset().blocks.len();
            let next = AtomicUsize::new(0);
            let rows = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        loop {
                            let block = next.fetch_add(1, Ordering::Relaxed);
                            if block >= blocks {
                                break;
                            }
                            let fetched = runtime.block_on(reader.fetch(block, None)).unwrap();
                            for batch in reader.decode(fetched).unwrap() {
                                rows.fetch_add(batch.num_rows(), Ordering::Relaxed);
                            }
                        }
                    });
                }
            });
            times.push((begun.elapsed(), opened, rows.into_inner()));
        }
        times.sort();
        let (total, opened, rows) = times[times.len() / 2];
        eprintln!(
            "{threads} threads: {rows} rows in {total:?} (open {opened:?}), {:.1} M rows/s",
            rows as f64 / total.as_secs_f64() / 1e6
        );
    }
}
