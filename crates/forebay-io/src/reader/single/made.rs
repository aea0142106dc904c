//! A column chunk of the values that were found.
//!
//! Each run of wanted rows becomes a page of its own, plain and uncompressed, so that the parquet crate
//! hands out their bytes without another copy. The rows between them have a page too, of no bytes: it is
//! passed over by its number of rows, and never read.

use bytes::Bytes;
use parquet::basic::{Compression, Encoding};
use parquet::file::page_index::offset_index::{OffsetIndexMetaData, PageLocation};

use super::body::width;
use super::header::{varint, write_plain};
use super::{Cell, Made, Wanted};

/// Makes the chunk, to be placed at an offset.
pub(super) fn make(
    wanted: &Wanted<'_>,
    deepest: u32,
    values: &[u8],
    cells: &[Cell],
    at: u64,
) -> Option<Made> {
    if cells.len() != wanted.rows.len() {
        return None;
    }
    let mut out: Vec<u8> = Vec::new();
    out.try_reserve(values.len().checked_add(cells.len().checked_mul(64)?)?).ok()?;
    let mut pages = Vec::new();
    let mut body = Vec::new();
    let (mut next, mut left) = (0u64, wanted.rows);
    let mut cells = cells;
    while let Some(first) = left.first() {
        let run = left.iter().zip(*first..).take_while(|(row, n)| **row == *n).count();
        let mut page = |row: u64, size: usize, out: &Vec<u8>| {
            pages.push(PageLocation {
                offset: i64::try_from(at.checked_add((out.len() - size) as u64)?).ok()?,
                compressed_page_size: i32::try_from(size).ok()?,
                first_row_index: i64::try_from(row).ok()?,
            });
            Some(())
        };
        if *first > next {
            page(next, 0, &out)?;
        }
        let (own, rest) = cells.split_at_checked(run)?;
        body.clear();
        if deepest > 0 {
            levels(own, deepest, &mut body)?;
        }
        let size = |c: &Cell| if let Cell::Read(r) = c { r.len().saturating_add(4) } else { 0 };
        let size = own.iter().map(size).fold(body.len(), usize::saturating_add);
        let before = out.len();
        // An entry of a dictionary may be wanted any number of times.
        if before.checked_add(size)? > values.len().checked_mul(2)?.checked_add(1 << 20)? {
            return None;
        }
        write_plain(i32::try_from(run).ok()?, i32::try_from(size).ok()?, &mut out);
        out.extend_from_slice(&body);
        for cell in own {
            let Cell::Read(range) = cell else { continue };
            out.extend(u32::try_from(range.len()).ok()?.to_le_bytes());
            out.extend_from_slice(values.get(range.clone())?);
        }
        page(*first, out.len() - before, &out)?;
        next = first + run as u64;
        (left, cells) = (left.get(run..)?, rest);
    }
    if next < wanted.all_rows {
        pages.push(PageLocation {
            offset: i64::try_from(at.checked_add(out.len() as u64)?).ok()?,
            compressed_page_size: 0,
            first_row_index: i64::try_from(next).ok()?,
        });
    }
    let column = wanted.column.clone().into_builder();
    let column = column
        .set_compression(Compression::UNCOMPRESSED)
        .set_encodings(vec![Encoding::PLAIN, Encoding::RLE])
        .set_dictionary_page_offset(None)
        .set_index_page_offset(None)
        .set_data_page_offset(i64::try_from(at).ok()?)
        .set_total_compressed_size(i64::try_from(out.len()).ok()?)
        .set_total_uncompressed_size(i64::try_from(out.len()).ok()?)
        .clear_page_encoding_stats()
        .build()
        .ok()?;
    let pages =
        OffsetIndexMetaData { page_locations: pages, unencoded_byte_array_data_bytes: None };
    Some(Made { column, pages, bytes: Bytes::from(out) })
}

/// The levels of rows: their number of bytes, and a packed run of groups of eight.
fn levels(cells: &[Cell], deepest: u32, out: &mut Vec<u8>) -> Option<()> {
    let (width, groups) = (width(deepest), cells.chunks(8));
    let mut packed = Vec::new();
    varint((groups.len() as u64) << 1 | 1, &mut packed);
    for group in groups {
        let level = |c: &Cell| if let Cell::Null(level) = c { *level } else { deepest };
        let bits = group.iter().rev().fold(0u64, |bits, c| bits << width | u64::from(level(c)));
        packed.extend(bits.to_le_bytes().get(..width as usize)?);
    }
    out.extend(u32::try_from(packed.len()).ok()?.to_le_bytes());
    out.append(&mut packed);
    Some(())
}
