//! The last thing that is done to a batch: images and labels are mixed, in place.
//!
//! It waits for all rows, since a row's partner is another row. The rows are cut into strips, one for
//! each thread: what a strip has of a row needs only the same bytes of other rows.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use forebay_core::suggest::in_sql;
use forebay_core::sync::lock;
use forebay_core::{DType, Error, ErrorKind, Result, RowKey};
use forebay_feed::{SlabWriter, Strip};
use forebay_ops::mix::{self, Blend, Cut, Drawn};

use super::{Assembled, Assembler, Done, Layout, Made, Plan, Written, gather_dense, told};
use crate::images::ImageTask;
use crate::mixes::class;
use crate::outputs::{ALIGN, LabelSpec, Make};
use crate::pool::{PoolHandle, caught};
use crate::rows::Rows;

/// Bytes of a row that are worth a thread of their own: several blocks of each picture.
const WORTH: usize = 32 << 10;

/// A strip of rows, and what is done to it.
pub(super) struct Work {
    strip: Strip,
    what: What,
}

enum What {
    /// The rows become weighted means.
    Blend(Blend),
    /// A rectangle of these pictures is replaced.
    Paste(Cut, Arc<ImageTask>),
}

impl Work {
    /// Does it; `check` may stop it.
    pub(super) fn run(self, check: impl Fn() -> Result<()>) -> Result<()> {
        let Self { strip, what } = self;
        let within = strip.within();
        let mut strip = Columns(strip);
        match what {
            What::Blend(blend) => {
                let whole = std::iter::once(0..within.len());
                mix::roll(&mut strip, whole, check, |own, other| blend.apply(own, other))
            }
            What::Paste(cut, task) => {
                let clip = |span: Range<usize>| {
                    let (first, last) = (span.start.max(within.start), span.end.min(within.end));
                    (first < last).then(|| first - within.start..last - within.start)
                };
                let Some((shape, layout, dtype)) = task.picture() else { return Err(uneven()) };
                let spans = cut.spans(shape, layout, dtype).filter_map(clip);
                mix::roll(&mut strip, spans, check, |own, other| own.copy_from_slice(other))
            }
        }
    }
}

/// A strip as the operators see it.
struct Columns(Strip);

impl mix::Strips for Columns {
    fn rows(&self) -> usize {
        self.0.rows()
    }

    fn row(&mut self, row: usize) -> &mut [u8] {
        self.0.row(row)
    }

    fn pair(&mut self, row: usize) -> (&mut [u8], &[u8]) {
        self.0.pair(row)
    }
}

fn uneven() -> Error {
    Error::internal("images of different sizes are to be mixed")
}

impl Assembler {
    /// Draws for a batch whose rows are written, writes its labels, and gives the work on the images.
    pub(super) fn mixing(&self, layout: &Layout, slab: &mut SlabWriter) -> Result<Vec<Work>> {
        let rows = layout.rows.len();
        let mut work = Vec::new();
        if rows == 0 || self.mixes.is_empty() {
            return Ok(work);
        }
        slab.reopen()?;
        // No row has the operator's number, so that its draws are the batch's alone.
        let key = RowKey { seed: self.seed, epoch: self.epoch, ordinal: layout.first, index: 0 };
        let draw = |mix: &crate::mixes::Mix| {
            let Some(Plan::Image { task, .. }) = layout.plans.get(mix.image) else {
                return Err(Error::internal("the images that are to be mixed went missing"));
            };
            mix.mixer.draw(key.draws(mix.operator), task.size().ok_or_else(uneven)?)
        };
        let drawn = self.mixes.iter().map(draw).collect::<Result<Vec<Drawn>>>()?;
        for (c, (plan, output)) in layout.plans.iter().zip(&self.outputs).enumerate() {
            let mut mixes = self.mixes.iter().zip(&drawn);
            let Some((_, drawn)) = mixes.find(|(m, _)| m.image == c || m.label == Some(c)) else {
                continue;
            };
            match (plan, &output.make) {
                (Plan::Image { task, at, .. }, _) => {
                    let (_, _, dtype) = task.picture().ok_or_else(uneven)?;
                    let width = task.offset(1);
                    for strip in slab.strips(*at, rows, width, &cuts(width, self.threads))? {
                        let what = match drawn.cut {
                            Some(cut) => What::Paste(cut, Arc::clone(task)),
                            None => What::Blend(Blend::new(dtype, drawn.lambda)?),
                        };
                        work.push(Work { strip, what });
                    }
                }
                (Plan::Label { at }, Make::Label(spec)) => {
                    let classes = classes(&layout.rows, c, &output.name, spec)?;
                    let mut region = slab.region(*at..*at + rows * spec.width())?;
                    mix::one_hot(&mut region, &classes, spec.classes, drawn.lambda);
                }
                (Plan::Dense { at, width }, Make::Dense(spec)) => {
                    let blend = Blend::new(spec.dtype, drawn.lambda)?;
                    for strip in slab.strips(*at, rows, *width, &[])? {
                        work.push(Work { strip, what: What::Blend(blend) });
                    }
                }
                _ => return Err(Error::internal("a column that cannot be mixed")),
            }
        }
        Ok(work)
    }

    /// Mixes a batch on the threads of the pool, and hands it on.
    pub(super) fn mix(
        self: &Arc<Self>,
        pool: &PoolHandle,
        seq: u64,
        (layout, mut slab, bad): Written,
        done: Done,
    ) {
        let mut work = match caught(|| self.mixing(&layout, &mut slab)) {
            Ok(work) => work.into_iter(),
            Err(e) => return done(Err(e)),
        };
        let Some(own) = work.next() else {
            return done(caught(|| self.whole((layout, slab, bad))));
        };
        let mixing = Arc::new(Mixing {
            assembler: Arc::clone(self),
            left: AtomicUsize::new(1 + work.len()),
            failed: Mutex::new(None),
            rest: Mutex::new(Some(((layout, slab, bad), done))),
        });
        for other in work {
            let mixing = Arc::clone(&mixing);
            let cancel = pool.cancel().clone();
            pool.submit(seq, move |_| mixing.part(other, || cancel.check()));
        }
        mixing.part(own, || pool.cancel().check());
    }
}

/// A batch that is being mixed.
struct Mixing {
    assembler: Arc<Assembler>,
    left: AtomicUsize,
    failed: Mutex<Option<Error>>,
    rest: Mutex<Option<(Written, Done)>>,
}

impl Mixing {
    fn part(&self, work: Work, check: impl Fn() -> Result<()>) {
        // The strip goes before the count, as the regions of images do.
        if let Err(e) = self.assembler.stats.assemble.time(|| caught(|| work.run(check))) {
            lock(&self.failed).get_or_insert(e);
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let Some((written, done)) = lock(&self.rest).take() else { return };
            let failed = lock(&self.failed).take();
            done(match failed {
                Some(e) => Err(e),
                None => caught(|| self.assembler.whole(written)),
            });
        }
    }
}

impl Assembler {
    /// The finished batch.
    fn whole(&self, (layout, slab, bad): Written) -> Result<Assembled> {
        let batch = self.finish(&layout, slab, &bad)?;
        Ok(Assembled::Whole(Made { batch, bad: told(&layout.rows, bad) }))
    }
}

/// Where rows of `width` bytes are cut: at cache lines, so that no element and no line has two writers.
fn cuts(width: usize, threads: usize) -> Vec<usize> {
    let parts = threads.min(width / WORTH).max(1);
    let part = width.div_ceil(parts).next_multiple_of(ALIGN).max(ALIGN);
    (part..width).step_by(part).collect()
}

/// The classes of the rows.
fn classes(rows: &Rows, column: usize, name: &str, spec: &LabelSpec) -> Result<Vec<usize>> {
    let dtype: DType = spec.dense.dtype;
    let width = dtype.size();
    let mut bytes = vec![0; rows.len() * width];
    gather_dense(rows, column, width, &mut bytes)?;
    let mut classes = Vec::with_capacity(rows.len());
    for (sample, bytes) in bytes.chunks_exact(width).enumerate() {
        match class(bytes, dtype, spec.classes) {
            Ok(class) => classes.push(class),
            Err(label) => {
                let (most, sql) = (spec.classes, in_sql(name));
                let message =
                    format!("the label {label} is none of the {most} classes, 0 to {}", most - 1);
                let error = Error::new(ErrorKind::Value, message).in_column(name).with_hint(format!(
                    "give the operators of mix_images the right num_classes, number the classes from 0, or leave \
                     such rows out with a filter before: {sql} >= 0 AND {sql} < {most}"
                ));
                return Err(match rows.sample(sample) {
                    Some((part, row)) => part.locate(error, row),
                    None => error,
                });
            }
        }
    }
    Ok(classes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_at_cache_lines() {
        assert!(cuts(0, 4).is_empty());
        assert!(cuts(3 * 32 * 32, 16).is_empty(), "too small to share");
        for threads in [1, 2, 3, 16, 100] {
            let width = 3 * 224 * 224 * 4 + 7;
            let cuts = cuts(width, threads);
            assert_eq!(cuts.len() + 1, threads.min(width / WORTH));
            assert!(cuts.iter().all(|cut| cut % ALIGN == 0 && *cut < width));
        }
    }
}
