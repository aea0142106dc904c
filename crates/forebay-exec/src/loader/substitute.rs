//! What a loader delivers in the place of a bad row.
//!
//! A bad row gives way to the first good one behind it in its lane, and behind the lane's end comes its
//! beginning. So a substitute follows from the dataset, the seed, the epoch and the row alone: threads,
//! prefetch, batches, world size and the place where an epoch was entered have no say. It is delivered
//! as it is in its own place, with its own draws.
//!
//! Substitutes are read by themselves: their windows may not be open, and bad rows are few. Stretches of
//! bad rows are remembered, so that a file full of them is not gone through again for each.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use forebay_core::sync::lock;
use forebay_core::text::count;
use forebay_core::{Error, ErrorKind, Result};
use forebay_ops::Scratch;
use forebay_plan::OnError;
use forebay_plan::schedule::{Bijection, Epoch};

use super::{Delivery, Share};
use crate::assemble::{Mended, Unfinished};
use crate::outputs::Make;
use crate::part::Part;
use crate::rows::{Change, Chunk, Rows};
use crate::window::WindowSource;

/// Rows that are read and looked at together at most, where one after the other is bad.
const MOST_AT_ONCE: u64 = 64;

/// Stretches of bad rows that are remembered; beyond that, all are forgotten and found again.
const MOST_STRETCHES: usize = 1 << 16;

/// Finds the substitutes of an epoch.
pub struct Substitutes {
    order: Arc<Epoch>,
    /// The permutation of all rows, where the order is that.
    bijection: Option<Arc<Bijection>>,
    share: Share,
    source: Arc<WindowSource>,
    known: Mutex<Stretches>,
}

/// A row of a chunk.
type Found = (Arc<Chunk>, u64);

impl Substitutes {
    /// None is known yet.
    pub fn new(
        order: Arc<Epoch>,
        bijection: Option<Arc<Bijection>>,
        share: Share,
        source: Arc<WindowSource>,
    ) -> Self {
        Self { order, bijection, share, source, known: Mutex::default() }
    }

    /// The rows of a step with others in place of the bad ones.
    ///
    /// # Errors
    /// A lane without a good row; substitutes that cannot be read.
    pub async fn replace(
        &self,
        step: u64,
        unfinished: &Unfinished,
        out: &Delivery,
    ) -> Result<Mended> {
        let places = self.places(step);
        let mut found: HashMap<usize, Found> = HashMap::new();
        let skipped = unfinished.skipped();
        // All of a batch before the first is looked for: none is another's substitute.
        let bad = skipped.into_iter().map(|(sample, error)| {
            let place = places.get(sample).copied();
            let place = place.ok_or_else(|| Error::internal("a sample without a place"))?;
            lock(&self.known).add(place..place + 1);
            Ok((sample, place, error))
        });
        for (sample, place, error) in bad.collect::<Result<Vec<_>>>()? {
            found.insert(sample, self.find(place, error, step, out).await?);
        }
        let rows = unfinished.rows().changed(|sample| match found.get(&sample) {
            Some((chunk, row)) => Change::GivesWay(chunk, *row),
            None => Change::Stays,
        });
        let from = (0..rows.len()).map(|i| (!found.contains_key(&i)).then_some(i)).collect();
        Ok(Mended { rows, from })
    }

    /// Where the samples of a step are in the stream.
    fn places(&self, step: u64) -> Vec<u64> {
        let pieces = self.order.step(self.share.step(step));
        let first = pieces.iter().map(|piece| (self.order.position(piece), piece.len));
        first.flat_map(|(first, len)| first..first + len).collect()
    }

    /// The first good row behind a place in its lane.
    async fn find(&self, place: u64, why: Error, step: u64, out: &Delivery) -> Result<Found> {
        let (lane, all) = self.order.lane_at(place);
        let len = all.end - all.start;
        let (mut ahead, mut at_once) = (1, 1);
        while ahead < len {
            let at = all.start + (place - all.start + ahead) % len;
            if let Some(end) = lock(&self.known).end_of(at) {
                ahead += end.min(all.end) - at;
                continue;
            }
            let (window, offset, left) = self.order.window_at(at);
            let n = left.min(all.end - at).min(len - ahead).min(at_once);
            let chunk = Arc::new(self.read(window, offset..offset + n, step, out).await?);
            let (good, chunk) = self.first_good(chunk, step, out).await?;
            let bad = good.unwrap_or(n);
            if bad > 0 {
                lock(&self.known).add(at..at + bad);
            }
            if let Some(row) = good {
                return Ok((chunk, row));
            }
            ahead += n;
            at_once = (2 * at_once).min(MOST_AT_ONCE);
        }
        Err(none_in(lane, len, &why))
    }

    /// Positions of a window as a chunk of their own.
    async fn read(
        &self,
        window: usize,
        wanted: Range<u64>,
        step: u64,
        out: &Delivery,
    ) -> Result<Chunk> {
        let (order, bijection) = (Arc::clone(&self.order), self.bijection.clone());
        let (groups, permutation) = out
            .pool()
            .run(step, move |_| {
                let rows: Vec<u64> = match (bijection, order.permutation(window)) {
                    (Some(all), _) => wanted.map(|position| all.at(position)).collect(),
                    (None, Some(rows)) => wanted
                        .filter_map(|position| rows.get(position as usize).copied().map(u64::from))
                        .collect(),
                    (None, None) => wanted.collect(),
                };
                Ok(order.places(window, rows))
            })
            .await?;
        let mut read = Vec::with_capacity(groups.len());
        let mut whole = 0;
        for (block, among) in groups {
            let single = Arc::clone(&self.source).rows_of(block, among.clone(), step).await?;
            if single.is_none() {
                // Single rows cost more than their block there.
                whole += self.source.costs.opening(block);
            }
            read.push((block, among, single));
        }
        let reservation = if whole > 0 { Some(out.reserve(step, whole).await) } else { None };
        let mut parts: Vec<Part> = Vec::new();
        // Which row of the chunk each of the wanted ones is, in the order of the groups.
        let mut flat: Vec<u32> = Vec::with_capacity(permutation.len());
        let mut rows = 0;
        for (block, among, single) in read {
            let now = match single {
                Some(now) => {
                    flat.extend((rows..).take(among.len()));
                    now
                }
                None => {
                    flat.extend(among.iter().map(|row| rows + row));
                    Arc::clone(&self.source).block(block, step).await?
                }
            };
            rows += now.iter().map(|part| part.rows as u32).sum::<u32>();
            parts.extend(now);
        }
        let place = |i: u32| {
            flat.get(i as usize).copied().ok_or_else(|| Error::internal("a row went missing"))
        };
        let permutation = permutation.into_iter().map(place).collect::<Result<Vec<u32>>>()?;
        Ok(Chunk::new(parts, Some(permutation), reservation))
    }

    /// The first position of a chunk whose row is good.
    async fn first_good(
        &self,
        chunk: Arc<Chunk>,
        step: u64,
        out: &Delivery,
    ) -> Result<(Option<u64>, Arc<Chunk>)> {
        let assembler = Arc::clone(out.assembler());
        let cancel = out.pool().cancel().clone();
        let draws = (assembler.seed, assembler.epoch);
        out.pool()
            .run(step, move |worker| {
                // After a panic there is fresh working memory.
                let mut scratch = std::mem::take(&mut worker.scratch);
                let mut rows = Rows::default();
                rows.push(&chunk, 0, chunk.positions(), false);
                let good = |sample: (&Part, usize), scratch: &mut Scratch| -> Result<bool> {
                    for (c, output) in assembler.outputs.iter().enumerate() {
                        let Make::Image(image) = &output.make else { continue };
                        if image.on_error == OnError::Skip
                            && image.why_bad(c, &output.name, sample, draws, scratch)?.is_some()
                        {
                            return Ok(false);
                        }
                    }
                    Ok(true)
                };
                let mut first = None;
                for (position, sample) in (0u64..).zip(rows.samples()) {
                    cancel.check()?;
                    if good(sample, &mut scratch)? {
                        first = Some(position);
                        break;
                    }
                }
                worker.scratch = scratch;
                drop(rows);
                Ok((first, chunk))
            })
            .await
    }
}

/// The error of a lane in which nothing can take the place of a bad row.
fn none_in(lane: u64, rows: u64, why: &Error) -> Error {
    Error::new(
        ErrorKind::Value,
        format!(
            "no row can take the place of this one: lane {lane} has {} rows, and all of them are bad",
            count(rows)
        ),
    )
    .at(why.location())
    .with_source(why.clone())
    .with_hint("mend the files, use on_error=\"null\" in map_image, or fewer lanes")
}

/// Stretches of the stream, apart from each other: where each begins, and its end.
#[derive(Default)]
struct Stretches(BTreeMap<u64, u64>);

impl Stretches {
    /// The end of the stretch that a place is in.
    fn end_of(&self, at: u64) -> Option<u64> {
        self.0.range(..=at).next_back().map(|(_, end)| *end).filter(|end| *end > at)
    }

    /// Adds a stretch, and joins what meets.
    fn add(&mut self, new: Range<u64>) {
        if self.0.len() >= MOST_STRETCHES {
            self.0.clear();
        }
        let (mut start, mut end) = (new.start, new.end);
        while let Some((before, its_end)) =
            self.0.range(..=end).next_back().map(|(s, e)| (*s, *e)).filter(|(_, e)| *e >= start)
        {
            (start, end) = (start.min(before), end.max(its_end));
            self.0.remove(&before);
        }
        self.0.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_join_where_they_meet() {
        let mut known = Stretches::default();
        for new in [4..5, 9..12, 5..6, 0..1, 6..9, 3..4] {
            known.add(new);
        }
        assert_eq!(known.0, BTreeMap::from([(0, 1), (3, 12)]));
        let ends: Vec<Option<u64>> = (0..4).chain([11, 12]).map(|at| known.end_of(at)).collect();
        assert_eq!(ends, [Some(1), None, None, Some(12), Some(12), None]);
        known.add(1..3);
        assert_eq!(known.0, BTreeMap::from([(0, 12)]));
    }
}
