//! The same bytes of every row of a column, for one writer: so several threads can work on all rows at
//! once, each on its own part of them.

use std::ops::Range;
use std::sync::Arc;

use forebay_core::{Error, Result};

use super::{Memory, SlabWriter};

impl SlabWriter {
    /// Gives out `rows` rows of `width` bytes from `at` on, cut into strips: the first one has the
    /// bytes of each row before `cuts[0]`, and so on; the last one those behind all cuts. As with
    /// [`SlabWriter::region`], nothing before is given out again.
    pub fn strips(
        &mut self,
        at: usize,
        rows: usize,
        width: usize,
        cuts: &[usize],
    ) -> Result<Vec<Strip>> {
        let end = rows.checked_mul(width).and_then(|bytes| bytes.checked_add(at));
        let fits = end.is_some_and(|end| end <= self.len) && at >= self.given;
        if !fits || !cuts.is_sorted() || cuts.last().is_some_and(|cut| *cut > width) {
            return Err(Error::internal(format!(
                "{rows} rows of {width} bytes at {at}, cut at {cuts:?}, are not within {}..{}",
                self.given, self.len
            )));
        }
        self.given = end.unwrap_or(self.len);
        let firsts = std::iter::once(0).chain(cuts.iter().copied());
        let lasts = cuts.iter().copied().chain([width]);
        let strip = |(first, last)| Strip {
            memory: Arc::clone(&self.memory),
            at,
            stride: width,
            rows,
            within: first..last,
        };
        Ok(firsts.zip(lasts).map(strip).collect())
    }
}

/// Exclusive access to the same bytes of every row of a column that is being written.
pub struct Strip {
    memory: Arc<Memory>,
    /// Where the first row begins.
    at: usize,
    /// Bytes of a row.
    stride: usize,
    rows: usize,
    /// The strip's bytes of each row.
    within: Range<usize>,
}

impl Strip {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Which bytes of each row it has.
    pub fn within(&self) -> Range<usize> {
        self.within.clone()
    }

    /// The bytes of a row; none beyond the last row.
    pub fn row(&mut self, row: usize) -> &mut [u8] {
        if row >= self.rows {
            return &mut [];
        }
        // SAFETY: The row is one of the strip's, and the borrow of the strip is exclusive and lasts
        // as long as what is returned.
        unsafe { std::slice::from_raw_parts_mut(self.start(row), self.within.len()) }
    }

    /// The bytes of a row, and those of the row before it; none for the first row, which has none
    /// before it, and beyond the last.
    pub fn pair(&mut self, row: usize) -> (&mut [u8], &[u8]) {
        if row == 0 || row >= self.rows {
            return (&mut [], &[]);
        }
        let len = self.within.len();
        // SAFETY: As for `row`. The two are apart: a strip has at most `stride` bytes of a row, and
        // rows begin `stride` bytes apart.
        unsafe {
            (
                std::slice::from_raw_parts_mut(self.start(row), len),
                std::slice::from_raw_parts(self.start(row - 1), len),
            )
        }
    }

    /// Where the strip's bytes of a row begin; `row` is below `rows`.
    ///
    /// They are within the mapping and initialised: `SlabWriter::strips` checked that all rows lie
    /// within the slab's length, which the mapping covers, and that the strip ends within its row.
    /// No other reference to them exists: the writer gives out a byte to one region or one column's
    /// strips only (its `given` only grows, and begins anew only when every `Arc` it gave out is
    /// gone), strips of one column end where the next begins, and a slab cannot be frozen, hence
    /// read, while this strip's `Arc` lives. The mapping lives as long as the `Arc`.
    fn start(&self, row: usize) -> *mut u8 {
        // SAFETY: See above: the offset is within the mapping.
        unsafe { self.memory.at().add(self.at + row * self.stride + self.within.start) }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::SlabPool;

    #[test]
    fn strips_have_their_part_of_every_row() {
        let mut writer = SlabPool::new(1).take(100, None).unwrap();
        writer.region(0..10).unwrap().fill(1);
        let strips = writer.strips(20, 4, 10, &[0, 3, 3]).unwrap();
        let sizes: Vec<_> = strips.iter().map(|s| (s.rows(), s.within())).collect();
        assert_eq!(sizes, [(4, 0..0), (4, 0..3), (4, 3..3), (4, 3..10)]);
        std::thread::scope(|scope| {
            for (n, mut strip) in (2u8..).zip(strips) {
                scope.spawn(move || {
                    for row in 0..4 {
                        strip.row(row).fill(n * 10 + row as u8);
                    }
                    let (own, before) = strip.pair(2);
                    own.copy_from_slice(before);
                    assert!(strip.row(4).is_empty() && strip.pair(0).0.is_empty());
                    assert!(strip.pair(4).1.is_empty());
                });
            }
        });
        assert!(writer.region(59..61).is_err(), "given out");
        writer.region(60..100).unwrap().fill(7);
        let slab = writer.freeze().unwrap();
        for (row, tens) in [(0, 0), (1, 1), (2, 1), (3, 3)] {
            let bytes = &slab.bytes()[20 + row * 10..][..10];
            assert_eq!(bytes[..3], [30 + tens; 3], "row {row}");
            assert_eq!(bytes[3..], [50 + tens; 7], "row {row}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut writer = SlabPool::new(1).take(100, None).unwrap();
        assert!(writer.strips(0, 11, 10, &[]).is_err());
        assert!(writer.strips(10, 10, 10, &[]).is_err());
        assert!(writer.strips(0, 2, 10, &[4, 3]).is_err());
        assert!(writer.strips(0, 2, 10, &[11]).is_err());
        assert!(writer.strips(0, usize::MAX, 10, &[]).is_err());
        assert_eq!(writer.strips(0, 0, 10, &[5]).unwrap().len(), 2);
        let strips = writer.strips(0, 10, 10, &[5]).unwrap();
        assert!(writer.strips(0, 1, 1, &[]).is_err(), "given out");
        assert!(writer.reopen().is_err(), "strips are out");
        drop(strips);
        writer.reopen().unwrap();
    }
}
