//! The status page over a loader that runs.
//!
//! From the root of the repository:
//!
//! ```console
//! $ cargo run --profile fast --package forebay-node --example page
//! http://127.0.0.1:40123/
//! ```
//!
//! The loader goes round `examples/data/photos` until standard input ends. Arguments: where to listen
//! (default `127.0.0.1:0`), the milliseconds that the trainer takes for a batch (default 20), and the
//! loader's name.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay::{Dataset, Error, ImageMode, ImageOp, Loader, LoaderOptions, MapImage, Result};
use forebay_node::{Board, LoaderCard, http};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:0".into());
    let pause = arguments.next().unwrap_or_else(|| "20".into());
    let name = arguments.next().unwrap_or_else(|| "photos".into());
    let pause = pause.parse().map(Duration::from_millis).map_err(|e| {
        Error::invalid(format!("{pause:?} is no number of milliseconds")).with_source(e)
    })?;

    let budget = forebay::process_budget()?;
    let board = Board::new(budget.clone());
    let _sampler = board.sample_every_second()?;
    let server = http::serve(&address, &board)?;
    println!("http://{}/", server.address());

    let loader = photos()?;
    let _client = board.client();
    let _shown = board.register(LoaderCard {
        name,
        rank: 0,
        world_size: 1,
        pid: std::process::id(),
        uid: 0,
        threads: loader.threads(),
        stats: Arc::clone(loader.stats()),
        account: loader.account().clone(),
    });
    board.health().ready();

    let ended = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&ended);
    let trainer = std::thread::Builder::new().name("trainer".into()).spawn(move || {
        while !told.load(Ordering::Relaxed) {
            for batch in loader.iter()?.take_while(|_| !told.load(Ordering::Relaxed)) {
                let _batch = batch?;
                std::thread::sleep(pause);
            }
        }
        Ok(())
    });
    let trainer = trainer.map_err(|e| Error::internal("no thread").with_source(e))?;
    // Whoever started this closes the pipe, or ends and so closes it.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    board.health().stopping();
    ended.store(true, Ordering::Relaxed);
    trainer.join().unwrap_or(Ok(()))
}

/// Photographs as a trainer wants them.
fn photos() -> Result<Loader> {
    let ops = vec![ImageOp::random_resized_crop([224, 224]), ImageOp::random_horizontal_flip()];
    let mut pictures = MapImage::new("image", ops);
    pictures.mode = Some(ImageMode::Rgb);
    Dataset::read_parquet(["examples/data/photos"])?
        .select(["image", "label"])?
        .map_image(pictures)?
        .loader(&LoaderOptions { seed: 7, ..LoaderOptions::new(8) })
}
