//! Rows in a file, from which any of them can be read by itself.
//!
//! # The file
//!
//! A name of 16 bytes; a segment for each block, in whatever order they were done; a table with rows,
//! offset and length of each segment. A segment is the records of its rows. Where records are not all of one
//! length, their offsets within the segment stand before them, 8 little-endian bytes each, one more than
//! there are rows. A record is the row's bytes, whatever they mean, and four bytes of the XXH64 of these,
//! whose seed is the row's number in its block: what is read is the row that was meant, or an error.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use forebay_core::{Error, Result};
use twox_hash::XxHash64;

use crate::cache::table::{self, Magic};
use crate::cache::{self, Entry, Part};

const MAGIC: &Magic = b"forebay store 1\n";
const CHECKSUM: usize = 4;

/// Bytes between two wanted records that are read along rather than skipped: a system call costs more.
const GAP: u64 = 2 << 10;

/// The records of a block, one after the other.
pub struct SegmentBuilder {
    bytes: Vec<u8>,
    /// Bytes of the offsets in front; none where all records are of one length.
    head: usize,
    rows: u64,
}

impl SegmentBuilder {
    /// Room for `rows` records of about `bytes` bytes; `equal` where they are all of one length.
    pub fn new(rows: usize, bytes: usize, equal: bool) -> Self {
        let head = if equal { 0 } else { (rows + 1) * 8 };
        let mut all = Vec::with_capacity(head + rows * (bytes + CHECKSUM));
        all.resize(head, 0);
        Self { bytes: all, head, rows: 0 }
    }

    /// Adds the next record, which `write` appends.
    pub fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        self.offset(start);
        write(&mut self.bytes);
        let sum = checksum(self.rows, &self.bytes[start..]);
        self.bytes.extend(sum);
        self.rows += 1;
    }

    /// The segment.
    pub fn finish(mut self) -> Segment {
        self.offset(self.bytes.len());
        Segment { rows: self.rows, bytes: self.bytes }
    }

    fn offset(&mut self, offset: usize) {
        let at = self.rows as usize * 8;
        if at + 8 <= self.head {
            self.bytes[at..at + 8].copy_from_slice(&(offset as u64).to_le_bytes());
        }
    }
}

/// The finished records of a block.
pub struct Segment {
    rows: u64,
    bytes: Vec<u8>,
}

fn checksum(row: u64, record: &[u8]) -> [u8; CHECKSUM] {
    (XxHash64::oneshot(row, record) as u32).to_le_bytes()
}

/// Records that were read, one after the other.
#[derive(Default)]
pub struct Found {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Found {
    /// The records.
    pub fn records(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }
}

/// Rows in a file.
pub struct RowStore {
    file: File,
    path: PathBuf,
    lines: Vec<Line>,
    /// Bytes of a record with its checksum, where all are of one length.
    length: Option<usize>,
}

/// Where the rows of one block are.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    rows: u64,
    offset: u64,
    len: u64,
}

impl RowStore {
    /// Opens an entry of records of `length` bytes, where they are equal; `None` where it is not of
    /// blocks with these rows, or damaged.
    pub fn read(file: File, entry: &Entry, length: Option<usize>, rows: &[u64]) -> Option<Self> {
        let length = length.map(|l| l + CHECKSUM);
        let (table, at) = table::read::<3>(&file, MAGIC, rows.len())?;
        let mut lines = Vec::with_capacity(rows.len());
        for ([rows, offset, len], wanted) in table.into_iter().zip(rows) {
            let segment = Line { rows, offset, len };
            let least = match length {
                Some(length) => segment.rows.checked_mul(length as u64)? == segment.len,
                None => segment.rows == 0 || (segment.rows + 1).checked_mul(8)? <= segment.len,
            };
            let inside = segment.offset.checked_add(segment.len)? <= at;
            if segment.rows != *wanted || !least || !inside {
                return None;
            }
            lines.push(segment);
        }
        Some(Self { file, path: entry.path().to_owned(), lines, length })
    }

    /// Reads rows of a block, ascending.
    ///
    /// # Errors
    /// A file that cannot be read, or was damaged since it was opened.
    pub fn rows(&self, block: usize, rows: &[u32], found: &mut Found) -> Result<()> {
        let beyond = || Error::internal("a block beyond the last");
        let segment = self.lines.get(block).ok_or_else(beyond)?;
        if rows.last().is_some_and(|r| u64::from(*r) >= segment.rows) {
            return Err(Error::internal("a row beyond its block"));
        }
        match self.length {
            Some(length) => self.equal(segment, length as u64, rows, found),
            None => rows.iter().try_for_each(|row| self.one(segment, *row, found)),
        }
    }

    /// Records of one length: neighbours are read together.
    fn equal(&self, segment: &Line, length: u64, rows: &[u32], found: &mut Found) -> Result<()> {
        let mut run = Vec::new();
        let near = |a: &u32, b: &u32| u64::from(b.saturating_sub(*a)) * length <= GAP + length;
        for rows in rows.chunk_by(near) {
            let (Some(first), Some(last)) = (rows.first(), rows.last()) else { continue };
            run.resize(((u64::from(last - first) + 1) * length) as usize, 0);
            self.at(&mut run, segment.offset + u64::from(*first) * length)?;
            for row in rows {
                let at = (u64::from(row - first) * length) as usize;
                self.check(*row, &run[at..at + length as usize], found)?;
            }
        }
        Ok(())
    }

    fn one(&self, segment: &Line, row: u32, found: &mut Found) -> Result<()> {
        let mut ends = [0u8; 16];
        self.at(&mut ends, segment.offset + u64::from(row) * 8)?;
        let mut ends = ends.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b));
        let (start, end) = (ends.next().unwrap_or(0), ends.next().unwrap_or(0));
        if start > end || end > segment.len {
            return Err(self.damaged());
        }
        let mut record = vec![0u8; (end - start) as usize];
        self.at(&mut record, segment.offset + start)?;
        self.check(row, &record, found)
    }

    fn check(&self, row: u32, record: &[u8], found: &mut Found) -> Result<()> {
        let split = record.split_last_chunk::<CHECKSUM>();
        let (values, sum) = split.ok_or_else(|| self.damaged())?;
        if checksum(u64::from(row), values) != *sum {
            return Err(self.damaged());
        }
        found.bytes.extend_from_slice(values);
        found.ends.push(found.bytes.len());
        Ok(())
    }

    fn at(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_exact_at(bytes, offset).map_err(|e| self.damaged().with_source(e))
    }

    fn damaged(&self) -> Error {
        cache::damaged(&self.path, &self.file)
    }
}

/// A store that is being made: blocks come in any order.
pub struct StoreWriter {
    making: Part,
    lines: Vec<Line>,
    at: u64,
}

impl StoreWriter {
    /// A store of so many blocks; those that are not put have no rows.
    pub fn new(making: Part, blocks: usize) -> Result<Self> {
        making.file().write_all_at(MAGIC, 0).map_err(|e| making.error(e))?;
        Ok(Self { making, lines: vec![Line::default(); blocks], at: MAGIC.len() as u64 })
    }

    /// Writes the rows of a block.
    pub fn put(&mut self, block: usize, segment: &Segment) -> Result<()> {
        let (offset, len, rows) = (self.at, segment.bytes.len() as u64, segment.rows);
        let written = self.making.file().write_all_at(&segment.bytes, offset);
        written.map_err(|e| self.making.error(e))?;
        let place = self.lines.get_mut(block);
        *place.ok_or_else(|| Error::internal("a block beyond the last"))? =
            Line { rows, offset, len };
        self.at += len;
        Ok(())
    }

    /// All blocks are there.
    pub fn finish(self) -> Result<File> {
        let lines = self.lines.iter().map(|s| [s.rows, s.offset, s.len]);
        let end = table::write(lines, self.at, MAGIC);
        self.making.file().write_all_at(&end, self.at).map_err(|e| self.making.error(e))?;
        self.making.commit()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    type Blocks = Vec<Vec<Vec<u8>>>;

    fn entry(folder: &std::path::Path) -> Entry {
        Entry::beside(&folder.join("s"), "x.store").unwrap()
    }

    /// Writes blocks, the last one first.
    fn write(entry: &Entry, blocks: &Blocks, equal: bool) {
        let claim = entry.claim(|| Ok(())).unwrap();
        let mut writer = StoreWriter::new(claim.create(0).unwrap(), blocks.len()).unwrap();
        for (i, rows) in blocks.iter().enumerate().rev().filter(|(_, rows)| !rows.is_empty()) {
            let mut segment = SegmentBuilder::new(rows.len(), 0, equal);
            rows.iter().for_each(|row| segment.push(|out| out.extend(row)));
            writer.put(i, &segment.finish()).unwrap();
        }
        writer.finish().unwrap();
    }

    fn counts(blocks: &Blocks) -> Vec<u64> {
        blocks.iter().map(|b| b.len() as u64).collect()
    }

    proptest! {
        #[test]
        fn any_row_can_be_read(
            blocks in proptest::collection::vec(
                proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..60),
                0..6,
            ),
            length in proptest::option::of(1usize..900),
            stride in 1usize..30,
        ) {
            let mut blocks: Blocks = blocks;
            if let Some(length) = length {
                blocks.iter_mut().flatten().for_each(|row| row.resize(length, 7));
            }
            let folder = tempfile::tempdir().unwrap();
            let entry = entry(folder.path());
            write(&entry, &blocks, length.is_some());
            let store = RowStore::read(entry.open().unwrap(), &entry, length, &counts(&blocks));
            let store = store.unwrap();
            let mut found = Found::default();
            let mut expected: Vec<&[u8]> = Vec::new();
            for (i, rows) in blocks.iter().enumerate().filter(|(_, rows)| !rows.is_empty()) {
                let wanted: Vec<u32> = (0..rows.len() as u32).step_by(stride).collect();
                store.rows(i, &wanted, &mut found).unwrap();
                expected.extend(wanted.iter().map(|r| rows[*r as usize].as_slice()));
            }
            prop_assert_eq!(found.records().collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn damage_is_seen() {
        for equal in [true, false] {
            let length = |i: usize| if equal { 5 } else { i % 4 };
            let blocks: Blocks =
                (0..3).map(|b| (0..7).map(|i| vec![b * 9; length(i)]).collect()).collect();
            let folder = tempfile::tempdir().unwrap();
            let entry = entry(folder.path());
            write(&entry, &blocks, equal);
            let whole = std::fs::read(entry.path()).unwrap();
            let read = |bytes: &[u8]| {
                std::fs::write(entry.path(), bytes).unwrap();
                let length = equal.then_some(5);
                RowStore::read(entry.open().unwrap(), &entry, length, &counts(&blocks))
            };
            for at in 0..whole.len() {
                let mut bytes = whole.clone();
                bytes[at] ^= 0x10;
                let Some(store) = read(&bytes) else { continue };
                let all: Vec<u32> = (0..7).collect();
                let hit = (0..3).any(|b| store.rows(b, &all, &mut Found::default()).is_err());
                assert!(hit || at < MAGIC.len(), "byte {at}");
            }
            for len in 0..whole.len() {
                assert!(read(&whole[..len]).is_none(), "cut at {len}");
            }
            let store = read(&whole).unwrap();
            assert!(store.rows(0, &[7], &mut Found::default()).is_err());
            assert!(store.rows(3, &[0], &mut Found::default()).is_err());
            std::fs::write(entry.path(), "").unwrap();
            let error = store.rows(1, &[2], &mut Found::default()).unwrap_err().report();
            assert!(error.contains("start again"), "{error}");
            assert!(!entry.path().exists());
        }
    }
}
