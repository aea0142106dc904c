//! The rows of a full shuffle: all of them are kept, for all epochs of a loader, in memory or in a file.

use std::sync::Arc;

use forebay_core::budget::Held;
use forebay_core::process::PerProcess;
use forebay_core::{Error, ErrorKind, Result, text};
use forebay_io::cache::{Claim, Entry, PAUSE, Waiting, folder};
use forebay_io::rowstore::{Found, RowStore, StoreWriter};
use forebay_io::{BlockRows, RowSets, file_work};
use forebay_plan::PlanHash;
use forebay_plan::schedule::{Bijection, Epoch, Piece, Schedule, Shuffle};
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::OnceCell;

use crate::costs::Costs;
use crate::loader::Delivery;
use crate::outputs::{OutputOptions, OutputSpec};
use crate::part::{Part, Places};
use crate::pipeline::Pipeline;
use crate::records::Records;
use crate::rows::{Chunk, Rows, Window};
use crate::window::{WindowSource, origin};

/// The part of the memory that the rows may take: a quarter, so that the trainer's other loaders, and
/// batches in flight, have room beside them.
const SHARE: u64 = 4;

/// Reads of one batch at the same time: what a solid-state disk answers best, and one for each
/// [`LEAST`] rows.
const READS: usize = 16;
const LEAST: usize = 64;

/// All rows of a loader.
pub struct Full {
    file: Option<InFile>,
    /// A forked child gets its own: what another thread was loading there would never be ready.
    kept: PerProcess<OnceCell<Kept>>,
}

/// The rows, once they are there.
enum Kept {
    Memory(Arc<Window>),
    File(Arc<RowStore>),
}

/// Where rows are kept that do not fit the memory.
struct InFile {
    entry: Entry,
    records: Arc<Records>,
    /// Rows of each block.
    rows: Arc<[u64]>,
    /// About the bytes of all.
    bytes: u64,
}

impl Full {
    /// Decides where the rows of a schedule are kept; `None` where it is no full shuffle.
    ///
    /// # Errors
    /// Rows that fit neither the memory nor a file.
    pub fn of(
        schedule: &Schedule,
        pipeline: &Pipeline,
        (outputs, options): (&[OutputSpec], &OutputOptions),
        index: &RowSets,
        costs: &Costs,
        limit: u64,
    ) -> Result<Option<Arc<Self>>> {
        if schedule.spec().shuffle != Shuffle::Full {
            return Ok(None);
        }
        let bytes = schedule.largest_window(|block| costs.kept(block));
        let file = if bytes <= limit / SHARE {
            None
        } else {
            let types = |from: usize| pipeline.schema().field(from).data_type().clone();
            let records = Records::new(outputs, types)?;
            // What the records depend on besides the dataset.
            let text = format!(
                "{} {} {} {options:?}",
                env!("CARGO_PKG_VERSION"),
                pipeline.plan.hash(),
                pipeline.dataset.pins()
            );
            let id = pipeline.dataset.id().to_string();
            let name = format!("{}-{}.store", &id[..16], PlanHash::of(text.as_bytes()));
            let entry = Entry::in_cache(&name).ok_or_else(|| nowhere(bytes, limit))?;
            let rows = (0..index.blocks()).map(|block| index.count(block)).collect();
            let exact = records.length().map(|l| (l as u64 + 4) * schedule.rows());
            let records = Arc::new(records);
            Some(InFile { entry, records, rows, bytes: exact.unwrap_or(bytes) })
        };
        Ok(Some(Arc::new(Self { file, kept: PerProcess::new() })))
    }

    /// Whether the rows are kept in a file.
    pub fn is_in_file(&self) -> bool {
        self.file.is_some()
    }

    /// Adds the rows of a piece to those of a batch.
    pub async fn take(
        &self,
        rows: &mut Rows,
        piece: Piece,
        (epoch, order): (&Arc<Epoch>, &Arc<Bijection>),
        source: &Arc<WindowSource>,
        out: &Delivery,
        seq: u64,
    ) -> Result<()> {
        let kept = self.kept.get(OnceCell::new);
        let kept = kept.get_or_try_init(|| self.load(epoch, source, out, seq)).await?;
        let order = Arc::clone(order);
        let range = (piece.offset, piece.len);
        let chunk = match (kept, &self.file) {
            (Kept::File(store), Some(file)) => {
                let mean = file.bytes.div_ceil(epoch.rows().max(1));
                let share = piece.len.saturating_mul(mean);
                let reservation = out.reserve(seq, share).await;
                let read = Read { store: Arc::clone(store), records: Arc::clone(&file.records) };
                let chunk = read.rows(epoch, &order, range, source, seq).await?;
                Chunk::new(chunk.0, Some(chunk.1), Some(reservation))
            }
            (Kept::Memory(window), _) => {
                let window = Arc::clone(window);
                let mut own = std::mem::take(rows);
                // Thousands of rows one by one are work for the CPU pool.
                *rows = source
                    .pool
                    .run(seq, move |_| {
                        window.pick(&mut own, &order, range, piece.repeat).map(|()| own)
                    })
                    .await?;
                return Ok(());
            }
            (Kept::File(_), None) => return Err(Error::internal("rows in a file without a place")),
        };
        rows.push(&Arc::new(chunk), 0, piece.len, piece.repeat);
        Ok(())
    }

    async fn load(
        &self,
        epoch: &Arc<Epoch>,
        source: &Arc<WindowSource>,
        out: &Delivery,
        seq: u64,
    ) -> Result<Kept> {
        if let Some(file) = &self.file {
            return file.load(source, out, seq).await.map(|s| Kept::File(Arc::new(s)));
        }
        let mut reservation = out.reserve(seq, source.cost(epoch, 0)).await;
        reservation.set_kind(Held::Window);
        let window = Arc::clone(source).load(Arc::clone(epoch), 0, seq, reservation).await?;
        Ok(Kept::Memory(Arc::new(window)))
    }
}

impl InFile {
    /// Waits until nobody else makes the file, without keeping a file thread waiting: whoever makes it
    /// may need one.
    async fn claim(&self) -> Result<Claim> {
        let mut waiting = Waiting::default();
        loop {
            let entry = self.entry.clone();
            let tried = file_work(move || Ok((entry.try_claim(&mut waiting), waiting))).await?;
            match tried {
                (Some(claim), _) => return Ok(claim),
                (None, later) => waiting = later,
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The file, where it is there.
    async fn open(&self) -> Result<Option<RowStore>> {
        let (entry, rows) = (self.entry.clone(), Arc::clone(&self.rows));
        let length = self.records.length();
        file_work(move || {
            Ok(entry.open().and_then(|file| RowStore::read(file, &entry, length, &rows)))
        })
        .await
    }

    /// Opens the file, or makes it.
    async fn load(&self, source: &Arc<WindowSource>, out: &Delivery, seq: u64) -> Result<RowStore> {
        if let Some(store) = self.open().await? {
            return Ok(store);
        }
        let claim = self.claim().await?;
        if let Some(store) = self.open().await? {
            return Ok(store);
        }
        let (bytes, blocks) = (self.bytes, self.rows.len());
        let making = file_work(move || {
            let part = claim.create(bytes)?;
            // The claim lasts until the file is there.
            Ok((StoreWriter::new(part, blocks)?, claim))
        });
        let mut making = making.await?;
        let wanted = (0..blocks).filter(|b| self.rows[*b] > 0);
        let mut segments = stream::iter(wanted)
            .map(|block| async move {
                let reservation = out.reserve(seq, 2 * source.costs.opening(block)).await;
                let parts = Arc::clone(source).block(block, seq).await?;
                let records = Arc::clone(&self.records);
                let segment = source.pool.run(seq, move |_| records.segment(&parts)).await?;
                Ok::<_, Error>((block, segment, reservation))
            })
            .buffer_unordered(source.threads + 1);
        while let Some((block, segment, reservation)) = segments.try_next().await? {
            making = file_work(move || {
                making.0.put(block, &segment)?;
                drop(reservation);
                Ok(making)
            })
            .await?;
        }
        file_work(move || making.0.finish().map(|_| ())).await?;
        self.open().await?.ok_or_else(|| Error::internal("a row store cannot be read back"))
    }
}

/// Reads rows of a store.
struct Read {
    store: Arc<RowStore>,
    records: Arc<Records>,
}

impl Read {
    /// Positions of the order, as parts and the permutation that brings them into that order.
    async fn rows(
        &self,
        epoch: &Arc<Epoch>,
        order: &Arc<Bijection>,
        (offset, len): (u64, u64),
        source: &Arc<WindowSource>,
        seq: u64,
    ) -> Result<(Vec<Part>, Vec<u32>)> {
        let rows = (offset..offset + len).map(|position| order.at(position));
        let (groups, permutation) = epoch.places(0, rows);
        let mut runs: Vec<Vec<(usize, Vec<u32>)>> = vec![Vec::new()];
        let run = (len as usize).div_ceil(READS).max(LEAST);
        let mut within = 0;
        for group in groups {
            if within >= run {
                runs.push(Vec::new());
                within = 0;
            }
            within += group.1.len();
            if let Some(last) = runs.last_mut() {
                last.push(group);
            }
        }
        let parts: Vec<Vec<Part>> = stream::iter(runs)
            .map(|run| async move {
                let store = Arc::clone(&self.store);
                let (found, run) = file_work(move || {
                    let mut found = Found::default();
                    run.iter()
                        .try_for_each(|(block, rows)| store.rows(*block, rows, &mut found))?;
                    Ok((found, run))
                })
                .await?;
                let (records, source) = (Arc::clone(&self.records), Arc::clone(source));
                let pool = source.pool.clone();
                pool.run(seq, move |_| unpacked(&records, &source, &found, run)).await
            })
            .buffered(READS)
            .try_collect()
            .await?;
        Ok((parts.into_iter().flatten().collect(), permutation))
    }
}

/// Parts of the records of some blocks' rows.
fn unpacked(
    records: &Records,
    source: &WindowSource,
    found: &Found,
    run: Vec<(usize, Vec<u32>)>,
) -> Result<Vec<Part>> {
    let all: Vec<&[u8]> = found.records().collect();
    if records.length().is_some() {
        // Fixed-width rows are converted already: nothing can be wrong with them any more.
        return Ok(vec![records.part(&all, Places::Many)?]);
    }
    let mut left = all.as_slice();
    let mut parts = Vec::with_capacity(run.len());
    for (block, rows) in run {
        let (now, later) = left.split_at_checked(rows.len()).unwrap_or((left, &[]));
        left = later;
        let kept = match source.index.block(block)? {
            BlockRows::All => rows,
            BlockRows::Some(kept) => {
                rows.iter().filter_map(|r| kept.get(*r as usize).copied()).collect()
            }
        };
        let origin = origin(&source.pipeline, block, 0);
        let places = Places::Batch { origin, kept: Some(kept.into()), index: None };
        parts.push(records.part(now, places)?);
    }
    Ok(parts)
}

/// The error of rows that fit nowhere.
fn nowhere(rows: u64, limit: u64) -> Error {
    Error::new(
        ErrorKind::Resource,
        format!(
            "shuffle=\"full\" keeps all rows: they take {}, a quarter of memory_limit is {}, and the cache folder {} cannot be written",
            text::bytes(rows),
            text::bytes(limit / SHARE),
            folder().map_or("(none is set)".into(), |f| f.display().to_string())
        ),
    )
    .at_place("loader(shuffle=\"full\")")
    .with_hint(format!(
        "set FOREBAY_CACHE_DIR to a folder on a fast disk, give memory_limit={} or more, or read fewer columns",
        rows.saturating_mul(SHARE)
    ))
}
