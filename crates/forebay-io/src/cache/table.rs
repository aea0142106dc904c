//! The table at the end of a kept file: what is where, and whether it is whole.
//!
//! Numbers are little-endian. A line of the table is N numbers of 8 bytes. Behind the table, at the very
//! end of the file: the table's offset, the number of lines, the XXH64 of the table, and 16 bytes that name
//! the kind of file and its version.

use std::fs::File;
use std::os::unix::fs::FileExt;

use twox_hash::XxHash64;

/// Names the kind of a file.
pub(crate) type Magic = [u8; 16];

const END: usize = 24 + size_of::<Magic>();

/// The table of a file that is meant to have so many lines, and where it begins: what comes before is what
/// it describes. `None` where the file is of another kind, or damaged.
pub(crate) fn read<const N: usize>(
    file: &File,
    magic: &Magic,
    lines: usize,
) -> Option<(Vec<[u64; N]>, u64)> {
    let size = file.metadata().ok()?.len();
    let mut end = [0u8; END];
    file.read_exact_at(&mut end, size.checked_sub(END as u64)?).ok()?;
    let (numbers, found) = end.split_at(24);
    let [at, count, sum] = words::<3>(numbers)?;
    let bytes = lines.checked_mul(N * 8)? as u64;
    let fits = at.checked_add(bytes)?.checked_add(END as u64)? == size;
    if found != magic || count != lines as u64 || !fits {
        return None;
    }
    let mut table = vec![0u8; bytes as usize];
    file.read_exact_at(&mut table, at).ok()?;
    if XxHash64::oneshot(0, &table) != sum {
        return None;
    }
    Some((table.chunks(N * 8).map(words::<N>).collect::<Option<_>>()?, at))
}

/// The table and the file's end, to be written at `at`.
pub(crate) fn write<const N: usize>(
    lines: impl ExactSizeIterator<Item = [u64; N]>,
    at: u64,
    magic: &Magic,
) -> Vec<u8> {
    let count = lines.len() as u64;
    let mut out: Vec<u8> = lines.flatten().flat_map(u64::to_le_bytes).collect();
    let sum = XxHash64::oneshot(0, &out);
    out.extend([at, count, sum].iter().flat_map(|n| n.to_le_bytes()));
    out.extend(magic);
    out
}

fn words<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (words, _) = bytes.as_chunks::<8>();
    let words: [[u8; 8]; N] = words.try_into().ok()?;
    Some(words.map(u64::from_le_bytes))
}
