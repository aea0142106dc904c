//! A loader in Rust: numbers from Parquet to dense batches, for two epochs.
//!
//! From the root of the repository:
//!
//! ```console
//! $ cargo run --profile fast --package forebay --example loader
//! ```
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::atomic::Ordering;

use forebay::plan::{Fill, PerColumn};
use forebay::{Column, DType, Dataset, Dense, Error, LoaderOptions, Result, Step};

/// What becomes one row of `features`.
const FEATURES: [&str; 4] = ["dep_delay", "arr_delay", "air_time", "distance"];

fn main() -> Result<()> {
    let flights = Dataset::read_parquet(["examples/data/flights"])?
        .filter("dep_delay IS NOT NULL")?
        .select(FEATURES)?
        .with_column("late", "dep_delay > 15")?
        .step(Step::Stack {
            columns: FEATURES.map(String::from).to_vec(),
            into: "features".into(),
            dtype: DType::Float32,
        })?;

    // A flight that was cancelled on its way has no arr_delay and no air_time. Without a fill the
    // first such row would be an error that names it.
    let nan = |column: &str| (column.to_owned(), Fill::Float(f64::NAN));
    let options = LoaderOptions {
        seed: 7,
        fill: Some(PerColumn::Named(FEATURES.map(nan).to_vec())),
        ..LoaderOptions::new(1024)
    };
    let loader = flights.loader(&options)?;
    println!(
        "{} steps an epoch, {} lanes, windows of {} blocks",
        loader.len(),
        loader.schedule().lanes(),
        loader.schedule().window()
    );

    for _ in 0..2 {
        let epoch = loader.iter()?;
        let number = epoch.number();
        for (step, batch) in epoch.enumerate() {
            let batch = batch?;
            let features = dense(batch.column("features"))?;
            if step == 0 {
                println!(
                    "epoch {number}: {} {:?}, mean departure delay of the first batch {:.2} minutes",
                    features.dtype,
                    features.shape,
                    mean_of_first_column(features)
                );
            }
        }
    }
    let stats = loader.stats();
    println!(
        "{} batches, {} rows, {} bytes read",
        stats.batches.load(Ordering::Relaxed),
        stats.rows_out.load(Ordering::Relaxed),
        stats.bytes_read.load(Ordering::Relaxed)
    );
    Ok(())
}

/// The tensor of a column that is one.
fn dense(column: Option<&Column>) -> Result<&Dense> {
    match column {
        Some(Column::Dense(dense)) => Ok(dense),
        _ => Err(Error::internal("a stack is always a dense tensor")),
    }
}

/// The mean over the batch of the first value of each row.
fn mean_of_first_column(features: &Dense) -> f32 {
    let width = features.shape[1];
    // The slab's bytes are in machine order; a tensor is contiguous, row after row.
    let values = features.bytes().as_chunks::<4>().0.iter().map(|b| f32::from_ne_bytes(*b));
    let first: Vec<f32> = values.step_by(width).collect();
    first.iter().sum::<f32>() / first.len() as f32
}
