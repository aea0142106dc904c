//! Loaders over plans that multiply rows: every lane is an endless stream.
//!
//! How many rows a batch needs shows only when they are multiplied. So one task takes the place of
//! opener and feeder: for each step it asks the rank's lanes, all at once, for their part of the batch.
//! A lane opens its windows one after the other, the next one while the current is consumed. A window
//! holds source rows as they were decoded; they are multiplied in *bites* of a few thousand items, a few
//! bites ahead on the CPU pool, so that what an open window takes does not depend on how long its lists
//! are.
//!
//! # Why it never waits for itself
//!
//! A next window is reserved as work of a later step, and waits for credit like any prefetch. When its
//! lane needs it, the reservation is made anew as work of the step at hand, which the head of the line
//! admits. What the lane consumed before is let go of first.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

use arrow::array::{RecordBatch, RecordBatchOptions, UInt32Array};
use forebay_core::budget::Held;
use forebay_core::sync::lock;
use forebay_core::{Error, ErrorKind, Reservation, Result};
use forebay_plan::schedule::{
    Epoch, ItemPosition, LaneProgress, LaneWalk, Piece, Schedule, Stretch,
};
use forebay_sql::{Relation, Split, elements};
use futures::future::join_all;
use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::watch;

use super::Loader;
use super::delivery::{Delivered, Delivery, EpochRun};
use crate::assemble::{arrow_of, gather};
use crate::ledger::Tally;
use crate::outputs::{OutputSpec, as_they_are};
use crate::part::{Items, Part, Places};
use crate::pool::Pool;
use crate::rows::{Chunk, Rows, Window};
use crate::runtime::{Abort, io};
use crate::window::{WindowHandle, WindowSource};

/// Items of a bite: fewer than a vector of them would fill a cache, and more than the work around them
/// weighs.
const BITE: std::ops::RangeInclusive<u64> = 256..=4096;

/// Batches that a bite should last for.
const BATCHES: u64 = 4;

/// Starts an iteration: its remaining steps, from the lanes' places on.
pub(super) fn start(
    loader: &Loader,
    split: &Arc<Split>,
    out: Arc<Delivery>,
    pool: Pool,
    from: Delivered,
    tally: Tally,
) -> Result<EpochRun> {
    let schedule = Arc::clone(&loader.schedule);
    let own = schedule.own_lanes().max(1) as usize;
    let rows = as_they_are(&split.rows.schema());
    let streams = Arc::new(Streams {
        source: loader.source(split.rows.projection(), rows, &pool),
        items: split.items.clone(),
        list: split.list,
        outputs: loader.outputs.clone(),
        out: Arc::clone(&out),
        bite: (BATCHES * schedule.lane_batch()).clamp(*BITE.start(), *BITE.end()) as usize,
        bites: 1 + loader.config.threads.div_ceil(own),
        later: loader.demand.prefetch + 1,
        orders: Mutex::default(),
        schedule,
    });
    let lanes = from.lanes.iter().map(|at| Lane::new(&streams, at)).collect();
    let steps = streams.schedule.steps().saturating_sub(from.count);
    let feeder = feed(streams, lanes, steps, from.count);
    let feeder = Abort(io()?.spawn(feeder));
    Ok(EpochRun::new(vec![feeder], out, Arc::clone(&loader.stats), pool, steps, from, tally))
}

/// What the lanes of an iteration share.
struct Streams {
    schedule: Arc<Schedule>,
    /// Opens windows of source rows.
    source: Arc<WindowSource>,
    /// Makes items of rows.
    items: Relation,
    /// The column of a row whose elements are its items, before any filter.
    list: usize,
    outputs: Vec<OutputSpec>,
    out: Arc<Delivery>,
    /// Items of a bite, about.
    bite: usize,
    /// Bites in the making, for each lane.
    bites: usize,
    /// How many steps on the work is that nobody waits for.
    later: u64,
    /// The orders of the passes that a lane is in.
    orders: Mutex<Vec<(u64, Weak<Epoch>)>>,
}

async fn feed(streams: Arc<Streams>, mut lanes: Vec<Lane>, steps: u64, before: u64) {
    let out = &streams.out;
    let each = streams.schedule.lane_batch();
    for step in 0..steps {
        let Some(permit) = out.permit().await else { return };
        let taken = join_all(lanes.iter_mut().map(|lane| lane.take(step, each))).await;
        let mut rows = Rows::default();
        for result in taken {
            match result {
                Ok(pieces) => {
                    for (chunk, first, len) in pieces {
                        rows.push(&chunk, first, len, false);
                    }
                }
                // That of the first lane: which one comes does not depend on the threads.
                Err(e) => return out.fail(step, e),
            }
        }
        let after = Delivered {
            count: before + step + 1,
            lanes: lanes.iter().map(|lane| lane.at).collect(),
        };
        let spec = streams.schedule.spec();
        let first = (before + step).saturating_mul(spec.global_batch);
        let first = first.saturating_add(spec.before(spec.global_batch));
        if !out.make(step, (rows, first), permit, after, || ()).await {
            return;
        }
    }
    out.finish(steps);
}

/// Consecutive items of a chunk.
type Taken = (Arc<Chunk>, u64, u64);

/// One lane on its way.
struct Lane {
    streams: Arc<Streams>,
    /// What it has given.
    at: LaneProgress,
    walk: LaneWalk,
    /// Items of its first row that were given before the run.
    skip: u32,
    /// The next window.
    next: Option<Opening>,
    /// The current one.
    bites: Option<BoxStream<'static, Result<Bite>>>,
    bite: Option<Bite>,
    /// The pass of the current window, and whether that is the last one in it.
    pass: u64,
    ends: bool,
    /// Whether the pass was entered at its beginning, and nothing was given in it.
    barren: bool,
    /// Whole passes since the last item.
    empty: u64,
}

impl Lane {
    fn new(streams: &Arc<Streams>, at: &LaneProgress) -> Self {
        let ItemPosition { pass, row, index } = at.next;
        Self {
            streams: Arc::clone(streams),
            at: *at,
            walk: LaneWalk::new(at.lane, pass, row),
            skip: index,
            next: None,
            bites: None,
            bite: None,
            pass,
            ends: false,
            barren: (row, index) == (0, 0),
            empty: 0,
        }
    }

    /// The lane's next `count` items, for a step.
    async fn take(&mut self, step: u64, mut count: u64) -> Result<Vec<Taken>> {
        let mut taken = Vec::new();
        while count > 0 {
            match &mut self.bite {
                Some(bite) if bite.left() > 0 => {
                    let len = count.min(bite.left());
                    taken.push((Arc::clone(&bite.chunk), bite.used, len));
                    self.at.next = bite.give(len);
                    (self.barren, self.empty) = (false, 0);
                    count -= len;
                }
                _ => self.bite = Some(self.bite_after(step).await?),
            }
        }
        Ok(taken)
    }

    /// The bite after the current one, which is used up.
    async fn bite_after(&mut self, step: u64) -> Result<Bite> {
        if let Some(error) = self.bite.take().and_then(|bite| bite.error) {
            return Err(error);
        }
        loop {
            if let Some(bites) = &mut self.bites {
                if let Some(bite) = bites.next().await {
                    return bite;
                }
                // Its memory goes before the next window's is waited for.
                self.bites = None;
                if self.ends && std::mem::replace(&mut self.barren, true) {
                    self.empty += 1;
                    if self.empty >= self.patience() {
                        return Err(self.nothing());
                    }
                }
            }
            let mut opening = match self.next.take() {
                Some(opening) => opening,
                None => self.open(step),
            };
            opening.wanted.send_replace(Some(step));
            let window = opening.handle.ready().await?;
            self.next = Some(self.open(step + self.streams.later));
            (self.pass, self.ends) = (opening.stretch.order.number(), opening.stretch.ends);
            let skip = std::mem::take(&mut self.skip);
            self.bites = Some(self.streams.bites(window, &opening.stretch, skip, step).await?);
        }
    }

    /// Begins to open the window that comes next, as work of a step.
    fn open(&mut self, step: u64) -> Opening {
        let stretch = self.walk.next(|pass| self.streams.order(pass));
        let (order, window) = (Arc::clone(&stretch.order), stretch.piece.window);
        let streams = Arc::clone(&self.streams);
        let (wanted, mut changed) = watch::channel(None);
        let (result, handle) = WindowHandle::new();
        let task = tokio::spawn(async move {
            let cost = streams.source.cost(&order, window);
            let (seq, reservation) = reserve(&streams.out, step, cost, &mut changed).await;
            let source = Arc::clone(&streams.source);
            let window = source.load(order, window, seq, reservation).await;
            // Nobody waits any more when the run was dropped.
            let _ = result.send(Some(window.map(Arc::new)));
        });
        Opening { stretch, wanted, handle, _task: Abort(task) }
    }

    /// Passes without an item that a lane is granted. Alone, it has all rows in every pass, so that one
    /// says it all. Among others it has other rows in the next, and a small share may be unlucky; a large
    /// one, or many in a row, is not.
    fn patience(&self) -> u64 {
        /// Source rows that speak for all.
        const ENOUGH: u64 = 1 << 16;
        const MOST: u64 = 64;
        match self.streams.schedule.lanes() {
            1 => 1,
            _ => (ENOUGH / self.streams.schedule.lane_rows(self.at.lane).max(1)).clamp(1, MOST),
        }
    }

    fn nothing(&self) -> Error {
        let (lane, pass, passes) = (self.at.lane, self.pass, self.empty);
        let whole = if passes == 1 {
            format!("the whole of pass {pass}")
        } else {
            format!("{passes} whole passes, the last of them {pass}")
        };
        Error::new(ErrorKind::Value, format!("lane {lane} gave no sample in {whole}"))
        .at_place("loader(steps=...)")
        .with_hint(
            "all lists of its rows are empty, or filters behind the explode leave nothing: filter such rows out before the explode, or use fewer lanes",
        )
    }
}

/// A window that is being opened ahead.
struct Opening {
    stretch: Stretch,
    /// The step that waits for it, once there is one.
    wanted: watch::Sender<Option<u64>>,
    handle: WindowHandle,
    _task: Abort,
}

/// Waits for credit as work of a step, and of an earlier one as soon as that wants it.
async fn reserve(
    out: &Delivery,
    mut step: u64,
    bytes: u64,
    wanted: &mut watch::Receiver<Option<u64>>,
) -> (u64, Reservation) {
    loop {
        tokio::select! {
            biased;
            reservation = out.reserve(step, bytes) => return (step, reservation),
            Ok(_) = wanted.wait_for(|now| now.is_some_and(|now| now < step)) => {}
        }
        step = (*wanted.borrow()).map_or(step, |now| now.min(step));
    }
}

/// Items of consecutive rows of a window.
struct Bite {
    chunk: Arc<Chunk>,
    /// The source row of each item, from the bite's first on, and its index.
    kept: UInt32Array,
    index: UInt32Array,
    /// Where the bite's first row is.
    first: ItemPosition,
    /// Items that were given.
    used: u64,
    /// What went wrong with the row behind its last.
    error: Option<Error>,
}

impl Bite {
    fn left(&self) -> u64 {
        self.kept.len() as u64 - self.used
    }

    /// Gives the next `len` items, and says where the one behind them is.
    fn give(&mut self, len: u64) -> ItemPosition {
        self.used += len;
        let last = (self.used as usize).saturating_sub(1);
        let of = |array: &UInt32Array| array.values().get(last).copied().unwrap_or(0);
        ItemPosition {
            row: self.first.row + u64::from(of(&self.kept)),
            index: of(&self.index) + 1,
            ..self.first
        }
    }
}

impl Streams {
    /// The order of a pass, which all lanes share that are in it.
    fn order(&self, pass: u64) -> Arc<Epoch> {
        let mut orders = lock(&self.orders);
        orders.retain(|(_, order)| order.strong_count() > 0);
        let known = orders.iter().find(|(p, _)| *p == pass).and_then(|(_, order)| order.upgrade());
        known.unwrap_or_else(|| {
            let order = Arc::new(self.schedule.epoch(pass));
            orders.push((pass, Arc::downgrade(&order)));
            order
        })
    }

    /// The items of a stretch of a window, bite by bite; of its first row, those from `skip` on.
    async fn bites(
        self: &Arc<Self>,
        window: Arc<Window>,
        stretch: &Stretch,
        skip: u32,
        seq: u64,
    ) -> Result<BoxStream<'static, Result<Bite>>> {
        let (this, open, piece) = (Arc::clone(self), Arc::clone(&window), stretch.piece);
        let cuts = self.out.pool().run(seq, move |_| this.cuts(&open, piece)).await?;
        let (pass, row) = (stretch.order.number(), stretch.row);
        let this = Arc::clone(self);
        let bites = cuts.into_iter().map(move |(offset, len)| {
            let (this, window) = (Arc::clone(&this), Arc::clone(&window));
            let ahead = offset - piece.offset;
            let first = ItemPosition { pass, row: row + ahead, index: 0 };
            let skip = if ahead == 0 { skip } else { 0 };
            async move {
                let pool = this.out.pool().clone();
                pool.run(seq, move |_| this.bite(&window, offset, len, first, skip)).await
            }
        });
        Ok(stream::iter(bites).buffered(self.bites).boxed())
    }

    /// Cuts rows of a window where about as many items come together as a bite has.
    fn cuts(&self, window: &Window, piece: Piece) -> Result<VecDeque<(u64, u64)>> {
        let mut rows = Rows::default();
        window.take(&mut rows, piece.offset, piece.len, false)?;
        let mut cuts = VecDeque::new();
        let (mut first, mut at, mut items) = (piece.offset, piece.offset, 0);
        for (part, row) in rows.samples() {
            let list = part.columns.get(self.list).ok_or_else(|| Error::internal("no list"))?;
            items += elements(arrow_of(list)?.as_ref(), row);
            at += 1;
            if items >= self.bite || at - first >= *BITE.end() {
                cuts.push_back((first, at - first));
                (first, items) = (at, 0);
            }
        }
        if at > first {
            cuts.push_back((first, at - first));
        }
        Ok(cuts)
    }

    /// Makes items of `len` rows of a window.
    fn bite(
        &self,
        window: &Window,
        offset: u64,
        len: u64,
        first: ItemPosition,
        skip: u32,
    ) -> Result<Bite> {
        let (part, kept, index, error) = match self.multiplied(window, offset, len, first.pass) {
            Ok(done) => (done.0, done.1, done.2, None),
            // The samples before the row that is wrong are delivered: which they are must not depend
            // on where bites begin.
            Err(error) => {
                let mut good = 0;
                let mut found = Err(error);
                while good < len {
                    found = self.multiplied(window, offset + good, 1, first.pass);
                    if found.is_err() {
                        break;
                    }
                    good += 1;
                }
                let error = found.err();
                let (part, kept, index) = self.multiplied(window, offset, good, first.pass)?;
                (part, kept, index, error)
            }
        };
        let given = |(row, index): (&u32, &u32)| *row == 0 && *index < skip;
        let used =
            kept.values().iter().zip(index.values()).take_while(|i| given(*i)).count() as u64;
        let reservation = self.out.account().force(part.own_bytes(), Held::Window);
        let chunk = Arc::new(Chunk::new(vec![part], None, Some(reservation)));
        Ok(Bite { chunk, kept, index, first, used, error })
    }

    /// The items of rows of a window, with the row of each and its index.
    fn multiplied(
        &self,
        window: &Window,
        offset: u64,
        len: u64,
        pass: u64,
    ) -> Result<(Part, UInt32Array, UInt32Array)> {
        let mut rows = Rows::default();
        window.take(&mut rows, offset, len, false)?;
        let schema = self.items.input_schema();
        let columns = schema.fields().iter().enumerate();
        let columns = columns
            .map(|(c, field)| gather(&rows, c, field.data_type(), field.name()))
            .collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let batch = RecordBatch::try_new_with_options(schema, columns, &options)
            .map_err(|e| Error::internal("rows do not fit together").with_source(e))?;
        let applied =
            self.source.stats.transform.time(|| self.items.apply(&batch)).map_err(|e| {
                let row = e.location().row.and_then(|row| usize::try_from(row).ok());
                match row.and_then(|row| rows.sample(row)) {
                    Some((part, row)) => part.relocate(e, row),
                    None => e,
                }
            })?;
        let all = || UInt32Array::from_iter_values(0..applied.batch.num_rows() as u32);
        let kept = applied.kept.unwrap_or_else(all);
        let index = applied.index.ok_or_else(|| Error::internal("items without a number"))?;
        let items = Items { rows, kept: kept.clone(), index: index.clone(), pass };
        let part = Part::new(&self.outputs, &applied.batch, Places::Items(items))?;
        Ok((part, kept, index))
    }
}
