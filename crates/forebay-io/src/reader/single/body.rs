//! What a page holds behind its header: levels, and values one after the other.

use std::ops::Range;

use super::header::{Header, Kind, RLE};
use super::input::Input;
use super::runs::Runs;
use super::snappy::Stream;
use crate::pages::Look;

/// Definition levels of one page are read as a whole; a million rows that alternate take an eighth of
/// this.
const LEVELS: u64 = 1 << 20;

enum Stored<'a, L> {
    Plain(Input<'a, L>),
    Snappy(Box<Stream<'a, L>>),
}

/// The decompressed part of a page, read forwards.
pub(super) struct Body<'a, L> {
    stored: Stored<'a, L>,
    len: u64,
    at: u64,
}

impl<'a, L: Look> Body<'a, L> {
    /// Opens a page, with its definition levels if its column has any.
    pub(super) fn open(
        file: &'a L,
        page: &Range<u64>,
        header: &Header,
        snappy: bool,
        optional: bool,
    ) -> Option<(Self, Option<Vec<u8>>)> {
        let mut levels = None;
        let (mut start, mut snappy, mut len) =
            (page.start.checked_add(header.len)?, snappy, header.uncompressed);
        if let Kind::DataV2 { definition, repetition, compressed, .. } = header.kind {
            let own = Input::new(file, start..page.end);
            if repetition != 0 || definition > LEVELS || (definition != 0) != optional {
                return None;
            }
            let mut bytes = Vec::new();
            own.read(0..definition, &mut bytes)?;
            levels = optional.then_some(bytes);
            start += definition;
            len = len.checked_sub(definition)?;
            snappy &= compressed;
        }
        let input = Input::new(file, start..page.end);
        let stored = if snappy {
            Stored::Snappy(Box::new(Stream::new(input)?))
        } else {
            Stored::Plain(input)
        };
        let mut body = Self { stored, len, at: 0 };
        let found = match &body.stored {
            Stored::Plain(input) => input.len(),
            Stored::Snappy(stream) => stream.len(),
        };
        if found != len {
            return None;
        }
        if header.kind == Kind::Data && optional {
            let len = u64::from(body.number()?);
            if header.levels != RLE || len > LEVELS {
                return None;
            }
            levels = Some(body.take(len)?);
        }
        Some((body, levels))
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    fn read(&mut self, len: u64, out: &mut Vec<u8>) -> Option<()> {
        let range = self.at..self.at.checked_add(len).filter(|end| *end <= self.len)?;
        self.at = range.end;
        match &mut self.stored {
            Stored::Plain(input) => input.read(range, out),
            Stored::Snappy(stream) => stream.read(range, out),
        }
    }

    fn take(&mut self, len: u64) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        self.read(len, &mut out)?;
        Some(out)
    }

    /// All that is left, if it is no more than this.
    pub(super) fn rest(&mut self, most: u64) -> Option<Vec<u8>> {
        self.take(self.len.checked_sub(self.at).filter(|left| *left <= most)?)
    }

    /// A length.
    fn number(&mut self) -> Option<u32> {
        let bytes = if let Stored::Plain(input) = &mut self.stored {
            let (bytes, have) = input.look::<4>(self.at)?;
            self.at += 4;
            (have == 4).then_some(bytes)?
        } else {
            self.take(4)?.try_into().ok()?
        };
        Some(u32::from_le_bytes(bytes))
    }

    /// Passes over values.
    pub(super) fn pass(&mut self, count: u64) -> Option<()> {
        for _ in 0..count {
            let len = u64::from(self.number()?);
            self.at = self.at.checked_add(len).filter(|end| *end <= self.len)?;
        }
        Some(())
    }

    /// Reads the next value, if it is no longer than this.
    pub(super) fn value(&mut self, most: u64, out: &mut Vec<u8>) -> Option<()> {
        let len = u64::from(self.number()?);
        if len > most { None } else { self.read(len, out) }
    }
}

/// Which rows of a page have a value: those whose definition level is the deepest.
pub(super) struct Levels<'a> {
    runs: Option<Runs<'a>>,
    deepest: u32,
}

impl<'a> Levels<'a> {
    /// Without levels, all have one.
    pub(super) fn new(levels: Option<&'a [u8]>, deepest: u32) -> Option<Self> {
        let runs = match levels {
            Some(data) => Some(Runs::new(data, width(deepest))?),
            None => None,
        };
        Some(Self { runs, deepest })
    }

    /// Passes over rows: how many of them have a value, and the level of the one after them.
    pub(super) fn until(&mut self, rows: u64) -> Option<(u64, u32)> {
        let Some(runs) = &mut self.runs else { return Some((rows, self.deepest)) };
        let before = runs.pass(rows, self.deepest)?;
        // A run may hold a number that is no level.
        Some((before, runs.one().filter(|level| *level <= self.deepest)?))
    }
}

/// Bits of a level.
pub(super) fn width(deepest: u32) -> u32 {
    u32::BITS - deepest.leading_zeros()
}
