//! Where the pages of a column are, in a file that has no page index: the headers say it.
//!
//! Each header says how many rows its page has and how long it is, so that one can step from header to
//! header and read nothing between them.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use forebay_core::sync::lock;
use forebay_core::{Error, Result};
use parquet::column::page::PageReader;
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::page_index::offset_index::{OffsetIndexMetaData, PageLocation};
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

use crate::blocking;
use crate::dataset::DataFile;
use crate::footer::{chunk_range, corrupt, parse_error};
use crate::listing::FilePlace;
use crate::store::{local, remote};

/// Bytes that one look at a header reads: most headers are smaller, statistics included.
const LOOK: usize = 512;

/// Bytes that a request for a header brings from an object store: the headers of small pages come
/// many at a time, and for large ones it costs no more than the header alone.
const PIECE: u64 = 64 << 10;

/// Something of which bytes at a position can be looked at.
pub(crate) trait Look: Send + Sync + 'static {
    /// Reads from a position on, as much as there is at hand.
    fn look(&self, out: &mut [u8], at: u64) -> io::Result<usize>;
}

impl Look for File {
    fn look(&self, out: &mut [u8], at: u64) -> io::Result<usize> {
        self.read_at(out, at)
    }
}

/// The page locations of a column, or none where rows cannot be told from its headers.
pub(crate) fn walk<L: Look>(
    file: &Arc<L>,
    uri: &Arc<str>,
    size: u64,
    group: &RowGroupMetaData,
    leaf: usize,
) -> Result<Option<OffsetIndexMetaData>> {
    // A panic in the parser is a defect of it that the file sets off. AssertUnwindSafe holds because
    // the closure borrows immutable data only, and what it builds is dropped with it.
    let walked = catch_unwind(AssertUnwindSafe(|| walk_headers(file, uri, size, group, leaf)));
    walked.unwrap_or_else(|_| {
        Err(corrupt(uri, "is damaged: a page header cannot be read")
            .with_hint("copy or write it again"))
    })
}

fn walk_headers<L: Look>(
    file: &Arc<L>,
    uri: &Arc<str>,
    size: u64,
    group: &RowGroupMetaData,
    leaf: usize,
) -> Result<Option<OffsetIndexMetaData>> {
    let column = group.column(leaf);
    let Some(chunk) = chunk_range(column).filter(|c| c.end <= size) else { return Ok(None) };
    let nested = column.column_descr().max_rep_level() > 0;
    let headers = Arc::new(Headers { file: Arc::clone(file), size, looked: Mutex::default() });
    let rows = usize::try_from(group.num_rows()).unwrap_or(0);
    let damaged = |e: ParquetError| parse_error(e, uri, "a page header cannot be read");
    let mut pages =
        SerializedPageReader::new(Arc::clone(&headers), column, rows, None).map_err(damaged)?;
    let mut locations: Vec<PageLocation> = Vec::new();
    let mut row = 0i64;
    while let Some(page) = pages.peek_next_page().map_err(damaged)? {
        // The reader looks at a header where the header begins.
        let Some(offset) = lock(&headers.looked).take() else { return Ok(None) };
        if let Some(last) = locations.last_mut() {
            let size = offset as i64 - last.offset;
            let Ok(size) = i32::try_from(size) else { return Ok(None) };
            last.compressed_page_size = size;
        }
        if !page.is_dict {
            // Without repetition there is one level a row.
            let levels = page.num_levels.filter(|_| !nested);
            let Some(n) = page.num_rows.or(levels) else { return Ok(None) };
            locations.push(PageLocation {
                offset: offset as i64,
                compressed_page_size: 0,
                first_row_index: row,
            });
            row += n as i64;
        }
        pages.skip_next_page().map_err(damaged)?;
        *lock(&headers.looked) = None;
    }
    if row != group.num_rows() {
        return Ok(None);
    }
    if let Some(last) = locations.last_mut() {
        let Ok(size) = i32::try_from(chunk.end as i64 - last.offset) else { return Ok(None) };
        last.compressed_page_size = size;
    }
    Ok(Some(OffsetIndexMetaData {
        page_locations: locations,
        unencoded_byte_array_data_bytes: None,
    }))
}

/// A file of which only page headers are looked at; remembers where the first look was.
struct Headers<L> {
    file: Arc<L>,
    size: u64,
    looked: Mutex<Option<u64>>,
}

impl<L: Look> Length for Headers<L> {
    fn len(&self) -> u64 {
        self.size
    }
}

impl<L: Look> ChunkReader for Headers<L> {
    type T = BufReader<At<L>>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        lock(&self.looked).get_or_insert(start);
        Ok(BufReader::with_capacity(LOOK, At { file: Arc::clone(&self.file), at: start }))
    }

    fn get_bytes(&self, start: u64, _: usize) -> parquet::errors::Result<Bytes> {
        Err(ParquetError::General(format!("the page at {start} was read where only headers are")))
    }
}

/// Reads a file from a position on.
struct At<L> {
    file: Arc<L>,
    at: u64,
}

impl<L: Look> Read for At<L> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let got = self.file.look(out, self.at)?;
        self.at += got as u64;
        Ok(got)
    }
}

/// The page locations of all columns of a row group, or none where some cannot be told.
pub(crate) async fn of_group(
    file: &Arc<DataFile>,
    group: usize,
) -> Result<Option<Vec<OffsetIndexMetaData>>> {
    let named = |e: Error| e.in_file(Arc::clone(&file.uri)).in_row_group(group);
    match &file.place {
        FilePlace::Local(path) => {
            let (file, path) = (Arc::clone(file), path.clone());
            let walked = blocking::run(move || {
                let open = Arc::new(local::open_pinned(&path, &file.uri, &file.pin)?);
                let group = file.metadata.row_group(group);
                let leaves = 0..group.num_columns();
                let walked = leaves.map(|leaf| walk(&open, &file.uri, file.size, group, leaf));
                let walked = walked.collect::<Result<Option<Vec<_>>>>();
                // An error may come of a writer that changed the file meanwhile.
                local::check_pin(&open, &file.uri, &file.pin)?;
                walked
            });
            walked.await.map_err(named)
        }
        FilePlace::Remote(..) => {
            let mut found = Vec::new();
            for leaf in 0..file.metadata.row_group(group).num_columns() {
                match of_remote(file, group, leaf).await.map_err(named)? {
                    Some(pages) => found.push(pages),
                    None => return Ok(None),
                }
            }
            Ok(Some(found))
        }
    }
}

/// Walks a column in an object store: as far as the pieces that were read go, then another piece.
async fn of_remote(
    file: &Arc<DataFile>,
    group: usize,
    leaf: usize,
) -> Result<Option<OffsetIndexMetaData>> {
    let FilePlace::Remote(bucket, path) = &file.place else {
        return Err(Error::internal("a local file was read as a remote one"));
    };
    let column = file.metadata.row_group(group).column(leaf);
    let Some(chunk) = chunk_range(column).filter(|c| c.end <= file.size) else { return Ok(None) };
    let pieces = Arc::new(Pieces::default());
    let mut before = None;
    loop {
        let (owner, held) = (Arc::clone(file), Arc::clone(&pieces));
        let walked = blocking::run(move || {
            let group = owner.metadata.row_group(group);
            Ok(walk(&held, &owner.uri, owner.size, group, leaf))
        });
        let walked = walked.await?;
        let missing = lock(&pieces.missing).take();
        // Each look is further on than the one before, or the file leads in a circle.
        let Some(at) = missing.filter(|at| before.is_none_or(|b| b < *at)) else { return walked };
        before = Some(at);
        let range = at..(at + PIECE).min(chunk.end).max(at + 1).min(file.size);
        let ranges = std::slice::from_ref(&range);
        let bytes = remote::read_ranges(bucket, path, &file.uri, &file.pin, ranges).await?;
        lock(&pieces.held).extend(bytes.into_iter().map(|b| (at, b)));
    }
}

/// What was read of a remote column, and where the next piece is wanted.
#[derive(Default)]
struct Pieces {
    held: Mutex<Vec<(u64, Bytes)>>,
    missing: Mutex<Option<u64>>,
}

impl Look for Pieces {
    fn look(&self, out: &mut [u8], at: u64) -> io::Result<usize> {
        for (start, bytes) in lock(&self.held).iter().rev() {
            let within = at.checked_sub(*start).and_then(|w| bytes.get(w as usize..));
            if let Some(rest) = within.filter(|rest| !rest.is_empty()) {
                let n = rest.len().min(out.len());
                out[..n].copy_from_slice(&rest[..n]);
                return Ok(n);
            }
        }
        lock(&self.missing).get_or_insert(at);
        Err(io::Error::other("not read yet"))
    }
}
