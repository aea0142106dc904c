//! Which rows of each block take part: counts in memory, the rows packed, in a file or in memory.
//!
//! # The file
//!
//! A name of 16 bytes; the packed rows of one block after the other; a table with count, offset, length
//! and XXH64 for each block. Packed rows are a bitmap, bit r % 8 of byte r / 8 for row r of the block, as a
//! zstd frame; a block of which all rows or none take part has length 0. What is read is checked as any
//! data from outside is.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_core::{Error, Result};
use twox_hash::XxHash64;

use crate::cache::table::{self, Magic};
use crate::cache::{self, Entry, Part};

const MAGIC: &Magic = b"forebay rows 1\n\0";

/// Bitmaps are mostly runs: the fastest level packs them as well as any.
const LEVEL: i32 = 1;

/// The rows of one block that take part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockRows {
    /// All of them.
    All,
    /// These, ascending.
    Some(Vec<u32>),
}

/// The rows of all blocks that take part.
#[derive(Debug)]
pub struct RowSets {
    /// Rows of each block.
    totals: Arc<[u64]>,
    blocks: Vec<Line>,
    packed: Packed,
}

/// A block in the table.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    count: u64,
    offset: u64,
    len: u64,
    checksum: u64,
}

#[derive(Debug)]
enum Packed {
    Memory(Vec<u8>),
    File(File, PathBuf),
}

impl RowSets {
    /// All rows of blocks that have so many.
    pub fn all(totals: Arc<[u64]>) -> Self {
        let blocks = totals.iter().map(|n| Line { count: *n, ..Line::default() }).collect();
        Self { totals, blocks, packed: Packed::Memory(Vec::new()) }
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// How many rows of a block take part.
    pub fn count(&self, block: usize) -> u64 {
        self.blocks[block].count
    }

    /// Rows over all blocks.
    pub fn total(&self) -> u64 {
        self.blocks.iter().map(|b| b.count).sum()
    }

    /// Whether all rows of a block take part.
    pub fn is_whole(&self, block: usize) -> bool {
        self.blocks[block].count == self.totals[block]
    }

    /// Bytes that this takes in memory; the counts alone, which are as many as there are blocks, are part
    /// of the dataset's own list.
    pub fn bytes(&self) -> u64 {
        if (0..self.blocks.len()).all(|block| self.is_whole(block)) {
            return 0;
        }
        let packed = match &self.packed {
            Packed::Memory(bytes) => bytes.len(),
            Packed::File(..) => 0,
        };
        (packed + self.blocks.len() * (size_of::<Line>() + 8)) as u64
    }

    /// The rows of a block: reads and unpacks them, unless all take part or none.
    ///
    /// # Errors
    /// A file that was damaged since it was opened.
    pub fn block(&self, block: usize) -> Result<BlockRows> {
        let (line, total) = (self.blocks[block], self.totals[block]);
        match line.count {
            n if n == total => return Ok(BlockRows::All),
            0 => return Ok(BlockRows::Some(Vec::new())),
            _ => {}
        }
        let mut own = Vec::new();
        let packed: &[u8] = match &self.packed {
            Packed::Memory(bytes) => {
                let range = line.offset as usize..(line.offset + line.len) as usize;
                bytes.get(range).unwrap_or_default()
            }
            Packed::File(file, path) => {
                own.resize(line.len as usize, 0);
                file.read_exact_at(&mut own, line.offset)
                    .map_err(|e| cache::damaged(path, file).with_source(e))?;
                if XxHash64::oneshot(0, &own) != line.checksum {
                    return Err(cache::damaged(path, file));
                }
                &own
            }
        };
        let rows = unpack(packed, total, line.count);
        rows.map(BlockRows::Some).ok_or_else(|| match &self.packed {
            Packed::Memory(_) => Error::internal("the rows of a block cannot be unpacked"),
            Packed::File(file, path) => cache::damaged(path, file),
        })
    }

    /// Reads an entry; `None` where it is not of blocks with these rows, or damaged.
    pub fn read(file: File, entry: &Entry, totals: Arc<[u64]>) -> Option<Self> {
        let (table, at) = table::read::<4>(&file, MAGIC, totals.len())?;
        let mut lines = Vec::with_capacity(totals.len());
        for ([count, offset, len, checksum], total) in table.into_iter().zip(totals.iter()) {
            let inside = offset.checked_add(len).is_some_and(|end| end <= at);
            if count > *total || !inside || len > most_packed(*total) {
                return None;
            }
            lines.push(Line { count, offset, len, checksum });
        }
        let packed = Packed::File(file, entry.path().to_owned());
        Some(Self { totals, blocks: lines, packed })
    }
}

/// No packed block is larger: zstd adds a little where nothing can be packed.
fn most_packed(total: u64) -> u64 {
    total / 8 + total / 1024 + 128
}

fn unpack(packed: &[u8], total: u64, count: u64) -> Option<Vec<u32>> {
    let bitmap = zstd::bulk::decompress(packed, total.div_ceil(8) as usize).ok()?;
    let mut rows = Vec::with_capacity(count as usize);
    for (byte, bits) in (0u32..).zip(&bitmap) {
        let mut bits = *bits;
        while bits != 0 {
            rows.push(byte * 8 + bits.trailing_zeros());
            bits &= bits - 1;
        }
    }
    let right = rows.len() as u64 == count && rows.last().is_none_or(|r| u64::from(*r) < total);
    right.then_some(rows)
}

/// Row sets that are being made, block by block.
pub struct RowSetWriter {
    totals: Arc<[u64]>,
    blocks: Vec<Line>,
    to: Target,
    at: u64,
    bitmap: Vec<u8>,
}

enum Target {
    Memory(Vec<u8>),
    File(Part, Vec<u8>),
}

/// Packed blocks are written in pieces of this size.
const PIECE: usize = 1 << 20;

impl RowSetWriter {
    /// In memory, or as an entry. No row takes part so far.
    pub fn new(totals: Arc<[u64]>, part: Option<Part>) -> Self {
        let blocks = vec![Line::default(); totals.len()];
        let to = match part {
            None => Target::Memory(Vec::new()),
            Some(part) => Target::File(part, MAGIC.to_vec()),
        };
        let at = if matches!(to, Target::File(..)) { MAGIC.len() as u64 } else { 0 };
        Self { totals, blocks, to, at, bitmap: Vec::new() }
    }

    /// The rows of a block that take part, ascending.
    pub fn put(&mut self, block: usize, rows: &[u32]) -> Result<()> {
        let total = self.totals[block];
        let count = rows.len() as u64;
        self.blocks[block].count = count;
        if count == 0 || count == total {
            return Ok(());
        }
        self.bitmap.clear();
        self.bitmap.resize(total.div_ceil(8) as usize, 0);
        for row in rows {
            match self.bitmap.get_mut(*row as usize / 8) {
                Some(byte) => *byte |= 1 << (row % 8),
                None => return Err(Error::internal("a row beyond its block")),
            }
        }
        let packed = zstd::bulk::compress(&self.bitmap, LEVEL)
            .map_err(|e| Error::internal("cannot pack rows").with_source(e))?;
        let len = packed.len() as u64;
        let checksum = XxHash64::oneshot(0, &packed);
        self.blocks[block] = Line { count, offset: self.at, len, checksum };
        self.at += len;
        match &mut self.to {
            Target::Memory(bytes) => bytes.extend(packed),
            Target::File(part, pending) => {
                pending.extend(packed);
                if pending.len() >= PIECE {
                    part.file().write_all(pending).map_err(|e| part.error(e))?;
                    pending.clear();
                }
            }
        }
        Ok(())
    }

    /// All blocks are there.
    pub fn finish(self, entry: Option<&Entry>) -> Result<RowSets> {
        let Self { totals, blocks, to, at, .. } = self;
        let packed = match (to, entry) {
            (Target::File(part, mut pending), Some(entry)) => {
                let lines = blocks.iter().map(|l| [l.count, l.offset, l.len, l.checksum]);
                pending.extend(table::write(lines, at, MAGIC));
                part.file().write_all(&pending).map_err(|e| part.error(e))?;
                Packed::File(part.commit()?, entry.path().to_owned())
            }
            (Target::Memory(bytes), _) => Packed::Memory(bytes),
            (Target::File(..), None) => return Err(Error::internal("an entry without its place")),
        };
        Ok(RowSets { totals, blocks, packed })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    /// Blocks with some rows of each.
    fn blocks() -> impl Strategy<Value = Vec<(u64, Vec<u32>)>> {
        let block = (1u64..3_000).prop_flat_map(|total| {
            let rows = prop_oneof![
                Just(Vec::new()),
                Just((0..total as u32).collect()),
                proptest::collection::btree_set(0..total as u32, 0..=total.min(200) as usize)
                    .prop_map(|rows| rows.into_iter().collect()),
            ];
            (Just(total), rows)
        });
        proptest::collection::vec(block, 0..12)
    }

    fn written(blocks: &[(u64, Vec<u32>)], entry: Option<&Entry>) -> RowSets {
        let totals: Arc<[u64]> = blocks.iter().map(|(total, _)| *total).collect();
        let claim = entry.map(|e| e.claim(|| Ok(())).unwrap());
        let part = claim.as_ref().map(|c| c.create(0).unwrap());
        let mut writer = RowSetWriter::new(totals, part);
        for (i, (_, rows)) in blocks.iter().enumerate() {
            writer.put(i, rows).unwrap();
        }
        writer.finish(entry).unwrap()
    }

    fn is(sets: &RowSets, blocks: &[(u64, Vec<u32>)]) {
        assert_eq!(sets.total(), blocks.iter().map(|(_, rows)| rows.len() as u64).sum::<u64>());
        for (i, (total, rows)) in blocks.iter().enumerate() {
            assert_eq!(sets.count(i), rows.len() as u64);
            let all = rows.len() as u64 == *total;
            let expected = if all { BlockRows::All } else { BlockRows::Some(rows.clone()) };
            assert_eq!(sets.block(i).unwrap(), expected);
        }
    }

    proptest! {
        #[test]
        fn what_is_put_comes_back(blocks in blocks()) {
            is(&written(&blocks, None), &blocks);
            let folder = tempfile::tempdir().unwrap();
            let entry = Entry::beside(&folder.path().join("s"), "x.rows").unwrap();
            is(&written(&blocks, Some(&entry)), &blocks);
            let totals = blocks.iter().map(|(total, _)| *total).collect();
            is(&RowSets::read(entry.open().unwrap(), &entry, totals).unwrap(), &blocks);
        }
    }

    #[test]
    fn damage_is_seen() {
        let blocks = vec![(1_000, vec![1, 5, 999]), (70, (0..70).collect()), (9, vec![0, 8])];
        let totals: Arc<[u64]> = blocks.iter().map(|(total, _)| *total).collect();
        let folder = tempfile::tempdir().unwrap();
        let entry = Entry::beside(&folder.path().join("s"), "x.rows").unwrap();
        let open = written(&blocks, Some(&entry));
        let whole = std::fs::read(entry.path()).unwrap();
        let read = |bytes: &[u8], totals: &Arc<[u64]>| {
            let path = folder.path().join("other");
            std::fs::write(&path, bytes).unwrap();
            RowSets::read(File::open(&path).unwrap(), &entry, Arc::clone(totals))
        };
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            // Either it is not taken, or the block that it hits is not.
            if let Some(sets) = read(&bytes, &totals) {
                let results: Vec<_> = (0..3).map(|b| sets.block(b)).collect();
                let hit = results.iter().any(Result::is_err);
                assert!(hit || at < MAGIC.len(), "byte {at}: {results:?}");
            }
            assert!(read(&whole[..at], &totals).is_none(), "cut at {at}");
        }
        assert!(read(&whole, &Arc::from([1_000, 70, 10])).is_some_and(|s| s.block(2).is_ok()));
        assert!(read(&whole, &Arc::from([1_000, 70])).is_none());
        assert!(read(&whole, &Arc::from([1_000, 7, 9])).is_none());
        std::fs::OpenOptions::new().write(true).open(entry.path()).unwrap().set_len(20).unwrap();
        let error = open.block(0).unwrap_err().report();
        assert!(error.contains("start again"), "{error}");
        assert!(!entry.path().exists());
    }
}
