//! Small reads of one page, with an account of what they cost.
//!
//! Finding a value means looking at a few bytes here and there. Each look is a system call, and on a disk
//! that has not cached the page a read of its own, so many looks are dearer than the page as a whole. The
//! account notices this while it is still cheap to change one's mind.

use std::ops::Range;

use crate::pages::Look;

/// Bytes that a look reads: a tag of Snappy or the length of a value, and what may come next.
const LOOK: usize = 256;

/// Looks that follow each other grow up to this: the tags are close together then.
const LONGEST: usize = 4 << 10;

/// What a look costs besides its bytes, in bytes that are read and decompressed in one go meanwhile:
/// about 1 KiB from the page cache, some 4 KiB and up from a disk.
const PRICE: u64 = 2 << 10;

/// What may be lost before it is known whether looking pays.
const STAKE: u64 = 64 << 10;

/// A range of a file. Positions are within it.
pub(super) struct Input<'a, L> {
    file: &'a L,
    range: Range<u64>,
    /// The last look: where, and what.
    window_at: u64,
    window: Vec<u8>,
    spent: u64,
}

impl<'a, L: Look> Input<'a, L> {
    pub(super) fn new(file: &'a L, range: Range<u64>) -> Self {
        Self { file, range, window: Vec::new(), window_at: 0, spent: 0 }
    }

    pub(super) fn len(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }

    /// The bytes at a position, as many of these few as the range has. `None` where looking does not pay,
    /// too.
    pub(super) fn look<const N: usize>(&mut self, at: u64) -> Option<([u8; N], usize)> {
        let have = usize::try_from(self.len().checked_sub(at)?.min(N as u64)).ok()?;
        if !self.holds(at, have) {
            let end = self.window_at + self.window.len() as u64;
            let follows = at >= self.window_at && at <= end + LOOK as u64;
            let more = if follows { (self.window.len() * 2).clamp(LOOK, LONGEST) } else { LOOK };
            let more = more.min(usize::try_from(self.len() - at).unwrap_or(more));
            let mut window = std::mem::take(&mut self.window);
            window.clear();
            self.read(at..at + more as u64, &mut window)?;
            (self.window, self.window_at) = (window, at);
            self.spent += PRICE + more as u64;
            if self.spent > STAKE + at / 2 {
                return None;
            }
        }
        let skip = usize::try_from(at - self.window_at).ok()?;
        let mut out = [0; N];
        out[..have].copy_from_slice(self.window.get(skip..skip + have)?);
        Some((out, have))
    }

    fn holds(&self, at: u64, len: usize) -> bool {
        let end = self.window_at + self.window.len() as u64;
        at >= self.window_at && at + len as u64 <= end
    }

    /// Reads exactly these bytes behind those in `out`.
    pub(super) fn read(&self, range: Range<u64>, out: &mut Vec<u8>) -> Option<()> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        let len = usize::try_from(range.end - range.start).ok()?;
        let from = self.range.start.checked_add(range.start)?;
        let first = out.len();
        out.try_reserve(len).ok()?;
        // A copy of zeros is quick in builds for tests as well.
        let zeros = [0; 4 << 10];
        while out.len() - first < len {
            let more = zeros.len().min(len - (out.len() - first));
            out.extend_from_slice(zeros.get(..more)?);
        }
        let mut done = 0;
        while done < len {
            match self.file.look(&mut out[first + done..], from + done as u64) {
                Ok(0) => return None,
                Ok(got) => done += got,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
        Some(())
    }
}

/// Bytes in memory stand for a file in tests.
#[cfg(test)]
impl Look for Vec<u8> {
    fn look(&self, out: &mut [u8], at: u64) -> std::io::Result<usize> {
        let rest = self.get(at as usize..).unwrap_or_default();
        let n = rest.len().min(out.len());
        out[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn looks_give_what_reads_give_and_end_when_they_cost_too_much() {
        let bytes: Vec<u8> = (0..1_000_000u32).map(|i| (i * 7 % 251) as u8).collect();
        let mut input = Input::new(&bytes, 100..900_000);
        for at in [0, 3, 254, 300, 90_000, 5, 899_898] {
            let (found, have) = input.look::<5>(at).unwrap();
            let at = at as usize + 100;
            assert_eq!(have, 5.min(900_000 - at));
            assert_eq!(found[..have], bytes[at..at + have]);
        }
        assert!(input.look::<5>(899_901).is_none());
        assert!(input.read(899_000..899_901, &mut Vec::new()).is_none());
        let looks = (0..899_900).step_by(1_000).take_while(|at| input.look::<4>(*at).is_some());
        assert!((20..60).contains(&looks.count()));
        // Something every 10,000 bytes is worth a look.
        let mut input = Input::new(&bytes, 0..1_000_000);
        assert!((0..1_000_000).step_by(10_000).all(|at| input.look::<4>(at).is_some()));
        // A file that ended early.
        assert!(Input::new(&bytes, 999_000..1_000_001).read(0..1_001, &mut Vec::new()).is_none());
    }
}
