//! Which rows make up a batch: positions in open windows, resolved to rows of parts.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use forebay_core::sync::lock;
use forebay_core::{Account, Error, Reservation, Result};
use forebay_plan::schedule::Bijection;

use crate::part::Part;

/// An open window: its rows in the order of delivery, in chunks that are given back one by one.
pub struct Window {
    /// Position of each chunk's first row in the window, and the chunk.
    chunks: Mutex<VecDeque<(u64, Arc<Chunk>)>>,
}

impl Window {
    /// A window over chunks in order.
    pub fn new(chunks: impl IntoIterator<Item = Chunk>) -> Self {
        let mut at = 0;
        let chunks = chunks.into_iter().map(|chunk| {
            let first = at;
            at += chunk.rows();
            (first, Arc::new(chunk))
        });
        Self { chunks: Mutex::new(chunks.collect()) }
    }

    /// Adds `len` positions, from `offset` on, to a batch's rows.
    pub fn take(&self, rows: &mut Rows, offset: u64, len: u64, repeat: bool) -> Result<()> {
        let chunks = lock(&self.chunks);
        let (mut at, end) = (offset, offset + len);
        let first = chunks.partition_point(|(first, chunk)| first + chunk.rows() <= at);
        for (first, chunk) in chunks.range(first..) {
            if at >= end || at < *first {
                break;
            }
            let take = (first + chunk.rows()).min(end) - at;
            rows.push(chunk, at - first, take, repeat);
            at += take;
        }
        if at == end { Ok(()) } else { Err(Error::internal("rows of a window were wanted again")) }
    }

    /// Adds `len` positions of a permutation of all rows, from `offset` on, to a batch's rows.
    pub fn pick(
        &self,
        rows: &mut Rows,
        order: &Bijection,
        (offset, len): (u64, u64),
        repeat: bool,
    ) -> Result<()> {
        let chunks = lock(&self.chunks);
        let Some((0, chunk)) = chunks.front().map(|(first, chunk)| (*first, chunk)) else {
            return Err(Error::internal("rows of a window were wanted that it does not have"));
        };
        for position in offset..offset + len {
            rows.push(chunk, order.at(position), 1, repeat);
        }
        Ok(())
    }

    /// Charges its bytes to another account.
    pub fn charge(&self, account: &Account) {
        for (_, chunk) in lock(&self.chunks).iter() {
            if let Some(reservation) = lock(&chunk.reservation).as_mut() {
                reservation.move_to(account);
            }
        }
    }

    /// Lets go of the chunks that end at `offset` or before. Batches that were made of them keep
    /// them for as long as they need them.
    pub fn release(&self, offset: u64) {
        let mut chunks = lock(&self.chunks);
        while chunks.front().is_some_and(|(first, chunk)| first + chunk.rows() <= offset) {
            chunks.pop_front();
        }
    }
}

/// Rows of a window that come and go together: parts, and the order of their rows.
pub struct Chunk {
    parts: Vec<Part>,
    /// Row number of each part's first row within the chunk, and the end.
    starts: Vec<u64>,
    permutation: Option<Vec<u32>>,
    /// Their bytes, given back when the last batch over them is done.
    reservation: Mutex<Option<Reservation>>,
}

impl Chunk {
    /// A chunk over parts in order.
    pub fn new(
        parts: Vec<Part>,
        permutation: Option<Vec<u32>>,
        reservation: Option<Reservation>,
    ) -> Self {
        let mut starts = vec![0u64];
        let mut at = 0;
        for part in &parts {
            at += part.rows as u64;
            starts.push(at);
        }
        Self { parts, starts, permutation, reservation: Mutex::new(reservation) }
    }

    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Number of rows in its order, which may leave some out.
    pub fn positions(&self) -> u64 {
        self.permutation.as_ref().map_or(self.rows(), |order| order.len() as u64)
    }
}

/// Consecutive rows of one part.
#[derive(Clone, Copy, Debug)]
struct Span {
    chunk: u32,
    part: u32,
    row: u32,
    len: u32,
}

/// What becomes of a sample in [`Rows::changed`].
pub enum Change<'c> {
    /// It stays.
    Stays,
    /// It is left out.
    Goes,
    /// This row of a chunk takes its place.
    GivesWay(&'c Arc<Chunk>, u64),
}

/// The rows of a batch, in order.
#[derive(Default)]
pub struct Rows {
    chunks: Vec<Arc<Chunk>>,
    spans: Vec<Span>,
    /// Whether the sample repeats one that was delivered before; empty when none does.
    repeats: Vec<bool>,
    len: usize,
}

impl Rows {
    /// Adds `len` positions of a chunk, from `offset` on.
    pub fn push(&mut self, chunk: &Arc<Chunk>, offset: u64, len: u64, repeat: bool) {
        let c = match self.chunks.iter().rposition(|own| Arc::ptr_eq(own, chunk)) {
            Some(c) => c,
            None => {
                self.chunks.push(Arc::clone(chunk));
                self.chunks.len() - 1
            }
        } as u32;
        if repeat && self.repeats.is_empty() {
            self.repeats = vec![false; self.len];
        }
        match &chunk.permutation {
            None => self.push_range(c, chunk, offset, len),
            Some(permutation) => {
                for row in &permutation[offset as usize..(offset + len) as usize] {
                    self.push_range(c, chunk, u64::from(*row), 1);
                }
            }
        }
        if repeat || !self.repeats.is_empty() {
            self.repeats.resize(self.len, repeat);
        }
    }

    fn push_range(&mut self, c: u32, chunk: &Chunk, mut at: u64, mut len: u64) {
        let mut part = chunk.starts.partition_point(|s| *s <= at) - 1;
        while len > 0 {
            let end = chunk.starts[part + 1];
            let take = len.min(end.saturating_sub(at));
            if take > 0 {
                let row = (at - chunk.starts[part]) as u32;
                self.spans.push(Span { chunk: c, part: part as u32, row, len: take as u32 });
                self.len += take as usize;
            }
            at += take;
            len -= take;
            part += 1;
        }
    }

    /// The rows with some samples in other places: `keep` says for each sample whether it stays, goes,
    /// or gives way to a row of a chunk.
    pub fn changed<'c>(&self, keep: impl Fn(usize) -> Change<'c>) -> Self {
        let mut out = Self { chunks: self.chunks.clone(), ..Self::default() };
        let mut repeats = Vec::new();
        let rows = self.spans.iter().flat_map(|s| (0..s.len).map(move |i| (s, s.row + i)));
        for (sample, (span, row)) in rows.enumerate() {
            match keep(sample) {
                Change::Stays => {
                    out.spans.push(Span { row, len: 1, ..*span });
                    out.len += 1;
                }
                Change::Goes => continue,
                Change::GivesWay(chunk, offset) => out.push(chunk, offset, 1, false),
            }
            repeats.extend(self.repeats.get(sample));
        }
        out.repeats = repeats;
        out
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Which samples are repeats; empty when none is.
    pub fn repeats(&self) -> &[bool] {
        &self.repeats
    }

    /// The spans, as (part, first row, rows).
    pub fn spans(&self) -> impl Iterator<Item = (&Part, usize, usize)> {
        self.spans.iter().map(|s| {
            let part = &self.chunks[s.chunk as usize].parts[s.part as usize];
            (part, s.row as usize, s.len as usize)
        })
    }

    /// The samples one by one, as (part, row).
    pub fn samples(&self) -> impl Iterator<Item = (&Part, usize)> {
        self.spans().flat_map(|(part, row, len)| (row..row + len).map(move |r| (part, r)))
    }

    /// A sample by its number.
    pub fn sample(&self, number: usize) -> Option<(&Part, usize)> {
        if self.spans.len() < self.len {
            return self.samples().nth(number);
        }
        // Every span is one row, as those of a permutation are.
        let s = self.spans.get(number)?;
        let part = self.chunks.get(s.chunk as usize)?.parts.get(s.part as usize)?;
        Some((part, s.row as usize))
    }

    /// Every part of every chunk touched: what `interleave` gathers from; and for each sample its
    /// (part index, row).
    pub fn indexed(&self) -> (Vec<&Part>, Vec<(usize, usize)>) {
        let mut firsts = Vec::with_capacity(self.chunks.len());
        let mut parts = Vec::new();
        for chunk in &self.chunks {
            firsts.push(parts.len());
            parts.extend(chunk.parts.iter());
        }
        let mut samples = Vec::with_capacity(self.len);
        for s in &self.spans {
            let part = firsts[s.chunk as usize] + s.part as usize;
            samples.extend((s.row..s.row + s.len).map(|r| (part, r as usize)));
        }
        (parts, samples)
    }
}
