//! Batches whose bad rows were skipped.
//!
//! Bad rows are rare, and the rest of their batch is decoded already. Where all samples take the same
//! room, only what changes is written: other rows are decoded into the places of bad ones, or the
//! samples behind them move up. Otherwise the batch is made anew.

use std::sync::Arc;

use forebay_core::{Error, Result};
use forebay_feed::SlabWriter;
use forebay_ops::Scratch;
use forebay_plan::OnError;

use super::{
    Assembler, BadValue, Layout, Made, Open, Plan, Unfinished, gather, gather_dense, told,
    write_repeats,
};
use crate::outputs::Make;
use crate::rows::Rows;

/// The rows that a batch gets in the end.
pub struct Mended {
    /// All of them.
    pub rows: Rows,
    /// Which sample each was before; none where its row is another. The numbers ascend, and none is
    /// smaller than its place.
    pub from: Vec<Option<usize>>,
}

impl Unfinished {
    /// The rows as they were chosen.
    pub fn rows(&self) -> &Rows {
        &self.layout.rows
    }

    /// The samples to be skipped, ascending, and why the first value of each is bad.
    pub fn skipped(&self) -> Vec<(usize, Error)> {
        let mut skipped: Vec<(usize, Error)> = Vec::new();
        for bad in self.bad.iter().filter(|b| b.policy == OnError::Skip) {
            if skipped.last().is_none_or(|(last, _)| *last != bad.sample) {
                skipped.push((bad.sample, bad.error.clone()));
            }
        }
        skipped
    }
}

impl Assembler {
    /// Finishes a batch with the rows that it gets in the end. `check` may stop it between two.
    pub fn mend(
        &self,
        unfinished: Unfinished,
        mended: Mended,
        scratch: &mut Scratch,
        check: impl Fn() -> Result<()>,
    ) -> Result<Made> {
        // After a panic there is fresh working memory.
        let mut own = std::mem::take(scratch);
        let Unfinished { layout, slab, bad } = unfinished;
        let told = told(&layout.rows, bad.clone());
        let fixed = layout.plans.iter().all(|plan| match plan {
            Plan::Dense { .. } | Plan::Arrow(_) | Plan::Label { .. } | Plan::Encode { .. } => true,
            Plan::Image { task, .. } => task.is_fixed(),
            Plan::List { .. } => false,
        });
        let (layout, mut slab, bad) = if fixed {
            self.patched(&layout, slab, &bad, mended, &mut own, &check)?
        } else {
            let first = layout.first;
            drop(layout);
            self.anew(slab, (mended.rows, first), &mut own, &check)?
        };
        if let Some(bad) = bad.iter().find(|b| b.policy == OnError::Skip) {
            let error = Error::internal("a row that was found good is bad");
            return Err(error.with_source(bad.error.clone()));
        }
        for work in self.mixing(&layout, &mut slab)? {
            work.run(&check)?;
        }
        let batch = self.finish(&layout, slab, &bad)?;
        *scratch = own;
        Ok(Made { batch, bad: told })
    }

    /// The same places with other rows in some of them.
    fn patched(
        &self,
        before: &Layout,
        mut slab: SlabWriter,
        bad: &[BadValue],
        Mended { rows, from }: Mended,
        scratch: &mut Scratch,
        check: impl Fn() -> Result<()>,
    ) -> Result<(Layout, SlabWriter, Vec<BadValue>)> {
        slab.reopen()?;
        let n = rows.len();
        // Of the samples that stay, what was bad is so still.
        let place = |b: &BadValue| from.iter().position(|from| *from == Some(b.sample));
        let stays = |b: &BadValue| Some(BadValue { sample: place(b)?, ..b.clone() });
        let mut now: Vec<BadValue> = bad.iter().filter_map(stays).collect();
        let mut plans = Vec::with_capacity(before.plans.len());
        for (c, (plan, output)) in before.plans.iter().zip(&self.outputs).enumerate() {
            plans.push(match (plan, &output.make) {
                (Plan::Dense { at, width }, _) => {
                    gather_dense(&rows, c, *width, &mut slab.region(*at..*at + n * width)?)?;
                    Plan::Dense { at: *at, width: *width }
                }
                (Plan::Arrow(_), Make::Arrow { field, .. }) => {
                    Plan::Arrow(gather(&rows, c, field.data_type(), &output.name)?)
                }
                (Plan::Label { at }, _) => Plan::Label { at: *at },
                (Plan::Image { task, at, valid }, _) => {
                    let mut region = slab.region(*at..*at + task.bytes())?;
                    for (i, (from, sample)) in from.iter().zip(rows.samples()).enumerate() {
                        let to = task.offset(i)..task.offset(i + 1);
                        match from {
                            Some(from) if *from == i => {}
                            Some(from) => region
                                .copy_within(task.offset(*from)..task.offset(from + 1), to.start),
                            None => {
                                check()?;
                                let place = region.get_mut(to);
                                let place = place.ok_or_else(|| {
                                    Error::internal("a sample beyond those of its batch")
                                })?;
                                now.extend(task.one(i, sample, place, scratch)?);
                            }
                        }
                    }
                    Plan::Image { task: Arc::clone(task), at: *at, valid: *valid }
                }
                (Plan::Encode { task, valid }, _) => {
                    Plan::Encode { task: Arc::new(task.kept(&from)?), valid: *valid }
                }
                (Plan::Arrow(_) | Plan::List { .. }, _) => {
                    return Err(Error::internal("a column that cannot be patched"));
                }
            });
        }
        if let Some(at) = before.repeats {
            write_repeats(&rows, &mut slab.region(at..at + n)?);
        }
        Ok((Layout { rows, first: before.first, plans, repeats: before.repeats }, slab, now))
    }

    /// Everything once more, in a slab whose layout fits the other rows.
    fn anew(
        &self,
        slab: SlabWriter,
        rows: (Rows, u64),
        scratch: &mut Scratch,
        check: impl Fn() -> Result<()>,
    ) -> Result<(Layout, SlabWriter, Vec<BadValue>)> {
        let Open { layout, slab, mut bad, chunks } = self.lay_out(rows, slab.into_reservation())?;
        for mut chunk in chunks {
            let mut at = chunk.first;
            chunk.run(&layout.rows, scratch, &mut at, &mut bad, &check)?;
        }
        Ok((layout, slab, bad))
    }
}
