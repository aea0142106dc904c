//! Which rows make up a batch: positions in open windows, resolved to rows of parts.

use std::sync::Arc;

use forebay_core::Reservation;

use crate::part::Part;

/// The decoded blocks of an open window and the permutation of their rows.
pub struct WindowData {
    parts: Vec<Part>,
    /// Row number of each part's first row within the window, and the end.
    starts: Vec<u64>,
    permutation: Option<Vec<u32>>,
    /// The window's bytes, given back when the last batch over it is done.
    _reservation: Option<Reservation>,
}

impl WindowData {
    /// A window over parts in order.
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
        Self { parts, starts, permutation, _reservation: reservation }
    }

    /// Rows of the window.
    pub fn rows(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }
}

/// Consecutive rows of one part.
#[derive(Clone, Copy, Debug)]
struct Span {
    window: u32,
    part: u32,
    row: u32,
    len: u32,
}

/// The rows of a batch, in order.
#[derive(Default)]
pub struct Rows {
    windows: Vec<Arc<WindowData>>,
    spans: Vec<Span>,
    /// Whether the sample repeats one that was delivered before; empty when none does.
    repeats: Vec<bool>,
    len: usize,
}

impl Rows {
    /// Adds `len` positions of a window, from `offset` on.
    pub fn push(&mut self, window: &Arc<WindowData>, offset: u64, len: u64, repeat: bool) {
        let w = match self.windows.iter().rposition(|own| Arc::ptr_eq(own, window)) {
            Some(w) => w,
            None => {
                self.windows.push(Arc::clone(window));
                self.windows.len() - 1
            }
        } as u32;
        if repeat && self.repeats.is_empty() {
            self.repeats = vec![false; self.len];
        }
        match &window.permutation {
            None => self.push_range(w, window, offset, len),
            Some(permutation) => {
                for row in &permutation[offset as usize..(offset + len) as usize] {
                    self.push_range(w, window, u64::from(*row), 1);
                }
            }
        }
        if repeat || !self.repeats.is_empty() {
            self.repeats.resize(self.len, repeat);
        }
    }

    fn push_range(&mut self, w: u32, window: &WindowData, mut at: u64, mut len: u64) {
        let mut part = window.starts.partition_point(|s| *s <= at) - 1;
        while len > 0 {
            let end = window.starts[part + 1];
            let take = len.min(end.saturating_sub(at));
            if take > 0 {
                let row = (at - window.starts[part]) as u32;
                self.spans.push(Span { window: w, part: part as u32, row, len: take as u32 });
                self.len += take as usize;
            }
            at += take;
            len -= take;
            part += 1;
        }
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
            let part = &self.windows[s.window as usize].parts[s.part as usize];
            (part, s.row as usize, s.len as usize)
        })
    }

    /// The samples one by one, as (part, row).
    pub fn samples(&self) -> impl Iterator<Item = (&Part, usize)> {
        self.spans().flat_map(|(part, row, len)| (row..row + len).map(move |r| (part, r)))
    }

    /// Every part of every window touched: what `interleave` gathers from; and for each sample its
    /// (part index, row).
    pub fn indexed(&self) -> (Vec<&Part>, Vec<(usize, usize)>) {
        let mut firsts = Vec::with_capacity(self.windows.len());
        let mut parts = Vec::new();
        for window in &self.windows {
            firsts.push(parts.len());
            parts.extend(window.parts.iter());
        }
        let mut samples = Vec::with_capacity(self.len);
        for s in &self.spans {
            let part = firsts[s.window as usize] + s.part as usize;
            samples.extend((s.row..s.row + s.len).map(|r| (part, r as usize)));
        }
        (parts, samples)
    }
}
