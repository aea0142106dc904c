//! Single values of a column, without reading its pages.
//!
//! Writers end a page when they look at its size, and the most common one looks every 1,024 rows: a row
//! group of 100 photographs is one page of 11 MB, or one dictionary of that size. The first batch of an
//! epoch wants two of them. Reading and decompressing all 100 for it takes longer than everything else
//! that a first batch needs.
//!
//! Plain values are a length and bytes, one after the other, and compressed values such as JPEG lie in a
//! Snappy stream as they are. So one can step from length to length and read what is wanted, and nothing
//! of the rest but a few bytes every 64 KiB. What was found becomes a column chunk of its own, with
//! uncompressed pages of just these rows, and takes the way of all others from there: the parquet crate
//! checks and decodes it.
//!
//! This is for columns of long strings or bytes outside of lists, plain or with a dictionary, uncompressed
//! or Snappy.
//! Everything else, and everything odd, is `None`: the pages are read as a whole then, and if something is
//! wrong with them, that is where it is said. So it is with pages that have a checksum, which covers all
//! of their bytes, and where looking for the values turns out to be as dear as reading everything.

mod body;
mod header;
mod input;
mod made;
mod runs;
mod snappy;

use std::ops::Range;

use bytes::Bytes;
use parquet::basic::{Compression, Type};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::page_index::offset_index::{OffsetIndexMetaData, PageLocation};

use self::body::{Body, Levels};
use self::header::{Header, Kind, PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY};
use self::runs::Runs;
use crate::pages::Look;

/// Less than this is read as quickly as its headers.
const SMALL: u64 = 128 << 10;

/// Shorter values are as dear to find one by one as to read all together.
const VALUE: u64 = 4 << 10;

/// Structs within structs: a level is no more than four bits then.
const DEEPEST: i16 = 15;

/// Indices of one page are read as a whole; writers make them a hundredth of this.
const INDICES: u64 = 16 << 20;

/// The rows that are wanted of a column.
pub(super) struct Wanted<'a> {
    pub column: &'a ColumnChunkMetaData,
    pub chunk: Range<u64>,
    pub pages: &'a [PageLocation],
    /// Within the row group, ascending, without repeats.
    pub rows: &'a [u64],
    /// Of the row group.
    pub all_rows: u64,
}

/// A column chunk that was made, of the wanted rows.
pub(super) struct Made {
    /// What takes the place of the file's own, if the bytes take the given place in the file.
    pub column: ColumnChunkMetaData,
    pub pages: OffsetIndexMetaData,
    pub bytes: Bytes,
}

/// Where the value of a row is.
#[derive(Clone, Debug)]
enum Cell {
    /// Nowhere: its definition level.
    Null(u32),
    /// In the dictionary.
    Entry(u32),
    /// Among the bytes that were read.
    Read(Range<usize>),
}

/// A data page with wanted rows.
struct Page<'a> {
    bytes: Range<u64>,
    first: u64,
    /// All of the page.
    count: u64,
    wanted: &'a [u64],
}

/// Reads the values of the wanted rows; the result is to be placed `at` this offset, where nothing else
/// is.
pub(super) fn read<L: Look>(file: &L, wanted: &Wanted<'_>, at: u64) -> Option<Made> {
    let column = wanted.column;
    let descr = column.column_descr();
    let flat = descr.max_rep_level() == 0 && descr.max_def_level() <= DEEPEST;
    let ordered = wanted.rows.is_sorted_by(|a, b| a < b);
    if !flat || !ordered || descr.physical_type() != Type::BYTE_ARRAY {
        return None;
    }
    let snappy = match column.compression() {
        Compression::SNAPPY => true,
        Compression::UNCOMPRESSED => false,
        _ => return None,
    };
    let first = u64::try_from(wanted.pages.first()?.offset).ok()?;
    let dictionary = wanted.chunk.start..first;
    let pages = pages_of(wanted)?;
    let length = |r: &Range<u64>| r.end.saturating_sub(r.start);
    let stored =
        pages.iter().map(|p| length(&p.bytes)).fold(length(&dictionary), u64::saturating_add);
    let deepest = u32::try_from(descr.max_def_level()).ok()?;
    if stored < SMALL {
        return None;
    }
    let mut found =
        Found { file, snappy, deepest, most: stored, values: Vec::new(), cells: Vec::new() };
    for page in &pages {
        found.page(page)?;
    }
    found.look_up(&dictionary)?;
    let Found { values, cells, .. } = found;
    made::make(wanted, deepest, &values, &cells, at)
}

/// The pages that have wanted rows.
fn pages_of<'a>(wanted: &Wanted<'a>) -> Option<Vec<Page<'a>>> {
    let mut out = Vec::new();
    let mut rows = wanted.rows;
    for (i, page) in wanted.pages.iter().enumerate() {
        let first = u64::try_from(page.first_row_index).ok()?;
        let next = match wanted.pages.get(i + 1) {
            Some(next) => u64::try_from(next.first_row_index).ok()?,
            None => wanted.all_rows,
        };
        let count = next.checked_sub(first)?;
        let (own, rest) = rows.split_at(rows.partition_point(|r| *r < next));
        rows = rest;
        if own.first().is_none_or(|r| *r < first) {
            if own.is_empty() {
                continue;
            }
            return None;
        }
        let start = u64::try_from(page.offset).ok()?;
        let end = start.checked_add(u64::try_from(page.compressed_page_size).ok()?)?;
        if start < wanted.chunk.start || end > wanted.chunk.end {
            return None;
        }
        out.push(Page { bytes: start..end, first, count, wanted: own });
    }
    rows.is_empty().then_some(out)
}

/// What was read so far.
struct Found<'a, L> {
    file: &'a L,
    snappy: bool,
    /// The definition level of a value.
    deepest: u32,
    /// Bytes of values that may be read: what all pages have. Beyond that nothing is saved.
    most: u64,
    values: Vec<u8>,
    /// Of the wanted rows, in order.
    cells: Vec<Cell>,
}

impl<L: Look> Found<'_, L> {
    /// Reads the values or indices of the wanted rows of a page.
    fn page(&mut self, page: &Page<'_>) -> Option<()> {
        let header = Header::read(self.file, &page.bytes)?;
        let rows = if let Kind::DataV2 { rows, .. } = header.kind { rows } else { header.values };
        if header.checksum || header.values != page.count || rows != page.count {
            return None;
        }
        let (mut body, levels) =
            Body::open(self.file, &page.bytes, &header, self.snappy, self.deepest > 0)?;
        let mut levels = Levels::new(levels.as_deref(), self.deepest)?;
        let mut at = page.first;
        match header.encoding {
            PLAIN => {
                // Where most rows are wanted, or the values are short, the page is.
                if page.wanted.len() as u64 > page.count / 2 || body.len() / page.count < VALUE {
                    return None;
                }
                for row in page.wanted {
                    let (before, level) = levels.until(row - at)?;
                    at = row + 1;
                    body.pass(before)?;
                    let cell = if level == self.deepest {
                        Cell::Read(self.value(&mut body)?)
                    } else {
                        Cell::Null(level)
                    };
                    self.cells.push(cell);
                }
            }
            PLAIN_DICTIONARY | RLE_DICTIONARY => {
                let indices = body.rest(INDICES)?;
                let (width, data) = indices.split_first()?;
                let mut indices = Runs::new(data, u32::from(*width))?;
                for row in page.wanted {
                    let (before, level) = levels.until(row - at)?;
                    at = row + 1;
                    indices.pass(before, 0)?;
                    self.cells.push(if level == self.deepest {
                        Cell::Entry(indices.one()?)
                    } else {
                        Cell::Null(level)
                    });
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// Reads the next value of a body.
    fn value(&mut self, body: &mut Body<'_, L>) -> Option<Range<usize>> {
        let start = self.values.len();
        let most = self.most.checked_sub(start as u64)?;
        body.value(most, &mut self.values)?;
        Some(start..self.values.len())
    }

    /// Reads the entries of the dictionary that were asked for.
    fn look_up(&mut self, dictionary: &Range<u64>) -> Option<()> {
        let mut entries: Vec<u32> = self.cells.iter().filter_map(Cell::entry).collect();
        if entries.is_empty() {
            return Some(());
        }
        entries.sort_unstable();
        entries.dedup();
        let header = Header::read(self.file, dictionary)?;
        let plain = matches!(header.encoding, PLAIN | PLAIN_DICTIONARY);
        if header.kind != Kind::Dictionary || header.checksum || !plain {
            return None;
        }
        let (mut body, _) = Body::open(self.file, dictionary, &header, self.snappy, false)?;
        let few = entries.len() as u64 <= header.values / 2;
        if !few
            || u64::from(*entries.last()?) >= header.values
            || body.len() / header.values < VALUE
        {
            return None;
        }
        let mut places = Vec::with_capacity(entries.len());
        let mut at = 0;
        for entry in &entries {
            body.pass(u64::from(entry - at))?;
            at = entry + 1;
            places.push(self.value(&mut body)?);
        }
        for cell in &mut self.cells {
            if let Some(entry) = cell.entry() {
                *cell = Cell::Read(places.get(entries.binary_search(&entry).ok()?)?.clone());
            }
        }
        Some(())
    }
}

impl Cell {
    fn entry(&self) -> Option<u32> {
        if let Self::Entry(entry) = self { Some(*entry) } else { None }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::{Arc, OnceLock};

    use arrow::array::{ArrayRef, BinaryArray, RecordBatch};
    use parquet::arrow::ArrowWriter;
    use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
    use parquet::file::properties::WriterProperties;
    use proptest::prelude::*;

    use super::*;

    /// A file of one page, or of one dictionary, with its footer.
    fn file(dictionary: bool) -> &'static (Vec<u8>, ParquetMetaData) {
        static FILES: [OnceLock<(Vec<u8>, ParquetMetaData)>; 2] = [const { OnceLock::new() }; 2];
        FILES[usize::from(dictionary)].get_or_init(|| {
            let mut seed = 1u32;
            let values = (0..40usize).map(|i| {
                let mut next = || {
                    seed = seed.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
                    (seed >> 24) as u8
                };
                (i % 9 != 4).then(|| (0..9_000 + i * 50).map(|_| next()).collect::<Vec<u8>>())
            });
            let column: ArrayRef = Arc::new(BinaryArray::from_iter(values));
            let batch = RecordBatch::try_from_iter([("a", column)]).unwrap();
            let props = WriterProperties::builder()
                .set_compression(Compression::SNAPPY)
                .set_dictionary_enabled(dictionary)
                .set_dictionary_page_size_limit(1 << 30)
                .set_data_page_size_limit(1 << 30)
                .build();
            let mut out = Vec::new();
            let mut writer = ArrowWriter::try_new(&mut out, batch.schema(), Some(props)).unwrap();
            writer.write(&batch).unwrap();
            writer.close().unwrap();
            let footer = ParquetMetaDataReader::new()
                .with_page_index_policy(parquet::file::metadata::PageIndexPolicy::Required)
                .parse_and_finish(&bytes::Bytes::from(out.clone()))
                .unwrap();
            (out, footer)
        })
    }

    fn read_rows(bytes: &Vec<u8>, footer: &ParquetMetaData, rows: &[u64]) -> Option<Made> {
        let column = footer.row_group(0).column(0);
        let (start, len) = column.byte_range();
        let pages = &footer.offset_index().unwrap()[0][0].page_locations;
        let chunk = start..start + len;
        let wanted = Wanted { column, chunk, pages, rows, all_rows: 40 };
        read(bytes, &wanted, bytes.len() as u64)
    }

    #[test]
    fn too_many_rows_or_rows_out_of_order_are_left_to_others() {
        for dictionary in [false, true] {
            let (bytes, footer) = file(dictionary);
            let made = read_rows(bytes, footer, &[0, 13, 14, 39]).unwrap();
            assert!((29_000..31_000).contains(&made.bytes.len()));
            // 0, 1 to 12, 13 (a null) and 14, 15 to 38, 39.
            assert_eq!(made.pages.page_locations.len(), 5);
            let every: Vec<u64> = (0..40).collect();
            for rows in [&every[..], &[5, 5], &[7, 3], &[40], &[u64::MAX], &[3, u64::MAX - 1]] {
                assert!(read_rows(bytes, footer, rows).is_none(), "{rows:?}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn damaged_pages_are_no_panic(
            dictionary in any::<bool>(),
            damage in proptest::collection::vec((any::<u32>(), any::<u8>()), 1..5),
            near in any::<bool>(),
            row in 0u64..40,
        ) {
            let (bytes, footer) = file(dictionary);
            let mut bytes = bytes.clone();
            let first = footer.offset_index().unwrap()[0][0].page_locations[0].offset as usize;
            let len = bytes.len();
            for (at, byte) in damage {
                // The headers of both pages, what follows them, or anywhere.
                let at = at as usize;
                let at = match (near, at % 2) {
                    (true, 0) => 4 + at / 2 % 40,
                    (true, _) => first + at / 2 % 40,
                    _ => at % len,
                };
                bytes[at] = byte;
            }
            if let Some(made) = read_rows(&bytes, footer, &[row]) {
                prop_assert!(made.bytes.len() < len);
            }
        }
    }
}
