//! Reading and checking the footer of a Parquet file.
//!
//! One read of the file's tail is enough for most files; a second one fetches a larger footer or a
//! page index. A footer is not trusted: every byte range and row count in it is checked before
//! anything is computed from it, and a panic in the parser is an error about the file.

pub(crate) mod int96;
pub(crate) mod zones;

use std::hash::Hasher;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arrow::datatypes::{Schema, SchemaRef};
use bytes::Bytes;
use forebay_core::{Error, ErrorKind, Result};
use parquet::DecodeResult;
use parquet::arrow::parquet_to_arrow_schema;
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, PageIndexPolicy, ParquetMetaData, ParquetMetaDataBuilder,
    ParquetMetaDataOptions, ParquetMetaDataPushDecoder, ParquetMetaDataReader,
    ParquetStatisticsPolicy,
};

use twox_hash::XxHash64;

use crate::blocking;
use crate::dataset::Pin;
use crate::listing::{FilePlace, Listed};
use crate::store::{local, remote};

/// What is read from the end of a file first. Footers of ordinary files fit; 64 KiB costs no more
/// than a smaller read on a disk or on S3.
const TAIL: u64 = 64 << 10;

/// A footer larger than this is decoded on the blocking pool, so that I/O threads stay responsive.
const DECODE_INLINE: usize = 256 << 10;

/// Rounds of "needs more data" before a file is taken for hostile; an honest one needs three.
const ROUNDS: usize = 8;

/// A decoded footer.
#[derive(Clone)]
pub(crate) struct Footer {
    pub(crate) metadata: Arc<ParquetMetaData>,
    pub(crate) schema: SchemaRef,
    /// XXH64 of the footer's bytes.
    pub(crate) checksum: u64,
}

/// Reads the footer of a file, on the blocking pool where the file is local.
pub(crate) async fn read(listed: &Listed) -> Result<Footer> {
    match &listed.place {
        FilePlace::Local(_) => {
            let listed = listed.clone();
            blocking::run(move || read_local(&listed)).await
        }
        FilePlace::Remote(bucket, path) => {
            let uri = &listed.uri;
            check_size(&listed.pin, uri)?;
            let size = listed.pin.size;
            let mut wanted = size.saturating_sub(TAIL)..size;
            let mut held: Vec<(Range<u64>, Bytes)> = Vec::new();
            for _ in 0..ROUNDS {
                let bytes = remote::read_ranges(
                    bucket,
                    path,
                    uri,
                    &listed.pin,
                    std::slice::from_ref(&wanted),
                )
                .await?;
                held.extend(bytes.into_iter().map(|b| (wanted.clone(), b)));
                let total: usize = held.iter().map(|(_, b)| b.len()).sum();
                let step = if total > DECODE_INLINE {
                    let (held, pin, uri) = (held.clone(), listed.pin.clone(), Arc::clone(uri));
                    blocking::run(move || decode(&held, &pin, &uri)).await?
                } else {
                    decode(&held, &listed.pin, uri)?
                };
                match step {
                    Step::Done(footer) => return Ok(*footer),
                    Step::Need(range) => wanted = range,
                }
            }
            Err(restless(uri))
        }
    }
}

fn restless(uri: &Arc<str>) -> Error {
    corrupt(uri, "has a footer that points to itself")
}

/// Reads the footer of a local file. Blocks.
pub(crate) fn read_local(listed: &Listed) -> Result<Footer> {
    let FilePlace::Local(path) = &listed.place else {
        return Err(Error::internal("a remote file was read as a local one"));
    };
    let uri = &listed.uri;
    check_size(&listed.pin, uri)?;
    let size = listed.pin.size;
    let mut wanted = size.saturating_sub(TAIL)..size;
    let mut held: Vec<(Range<u64>, Bytes)> = Vec::new();
    let never = AtomicBool::new(false);
    for _ in 0..ROUNDS {
        let bytes =
            local::read_ranges(path, uri, &listed.pin, std::slice::from_ref(&wanted), &never)?;
        held.extend(bytes.into_iter().map(|b| (wanted.clone(), b)));
        match decode(&held, &listed.pin, uri)? {
            Step::Done(footer) => return Ok(*footer),
            Step::Need(range) => wanted = range,
        }
    }
    Err(restless(uri))
}

enum Step {
    Done(Box<Footer>),
    Need(Range<u64>),
}

/// The error of a file that is not as it should be.
pub(crate) fn corrupt(uri: &Arc<str>, what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{uri} {what}")).in_file(Arc::clone(uri))
}

fn check_size(pin: &Pin, uri: &Arc<str>) -> Result<()> {
    if pin.size == 0 {
        return Err(corrupt(uri, "is empty (0 bytes)")
            .with_hint("its writer may still be running, or failed; write it again"));
    }
    if pin.size < 12 {
        return Err(corrupt(uri, &format!("is not a Parquet file: it has {} bytes", pin.size)));
    }
    Ok(())
}

/// Tries to decode what was read so far.
fn decode(held: &[(Range<u64>, Bytes)], pin: &Pin, uri: &Arc<str>) -> Result<Step> {
    check_magic(held, pin, uri)?;
    // The parser is fed bytes from outside. A panic in it is a defect of the parser that the file
    // sets off. AssertUnwindSafe holds because the closure borrows only immutable data from here
    // (byte ranges and the pin), and everything that it builds is dropped with it when it unwinds.
    let attempt = |index: PageIndexPolicy, lean: bool| {
        catch_unwind(AssertUnwindSafe(|| {
            let mut decoder =
                ParquetMetaDataPushDecoder::try_new(pin.size)?.with_page_index_policy(index);
            if lean {
                let options = ParquetMetaDataOptions::new()
                    .with_size_stats_policy(ParquetStatisticsPolicy::SkipAll)
                    .with_encoding_stats_policy(ParquetStatisticsPolicy::SkipAll);
                decoder = decoder.with_metadata_options(Some(Arc::new(options)));
            }
            for (range, bytes) in held {
                decoder.push_range(range.clone(), bytes.clone())?;
            }
            decoder.try_decode()
        }))
    };
    let mut outcome = attempt(PageIndexPolicy::Optional, false);
    if !matches!(outcome, Ok(Ok(_))) {
        // The index and the extra statistics are aids. Writers from before their standard put other
        // things in their place; the data is whole without them.
        let lean = attempt(PageIndexPolicy::Skip, true);
        if matches!(lean, Ok(Ok(_))) {
            tracing::debug!(file = %uri, "the page index or the size statistics cannot be read");
            outcome = lean;
        }
    }
    let decoded = match outcome {
        Ok(Ok(decoded)) => decoded,
        Ok(Err(e)) => return Err(parse_error(e, uri, "its footer cannot be read")),
        Err(_) => return Err(corrupt(uri, "is damaged: its footer cannot be decoded")),
    };
    let metadata = match decoded {
        DecodeResult::Data(metadata) => metadata,
        DecodeResult::NeedsData(ranges) => {
            let start = ranges.iter().map(|r| r.start).min().unwrap_or(0);
            let end = ranges.iter().map(|r| r.end).max().unwrap_or(0);
            if start >= end || end > pin.size {
                return Err(corrupt(uri, "is damaged: its footer points outside the file"));
            }
            return Ok(Step::Need(start..end));
        }
        DecodeResult::Finished => return Err(corrupt(uri, "is damaged: it has no footer")),
    };
    finished(metadata, pin, uri, checksum(held, pin.size)).map(|f| Step::Done(Box::new(f)))
}

/// Reads a footer that was kept elsewhere, as [`ParquetMetaDataWriter`] wrote it.
///
/// [`ParquetMetaDataWriter`]: parquet::file::metadata::ParquetMetaDataWriter
pub(crate) fn stored(bytes: &Bytes, checksum: u64, pin: &Pin, uri: &Arc<str>) -> Result<Footer> {
    // As in `decode`: a panic is the parser's, about bytes that are dropped.
    let read = catch_unwind(AssertUnwindSafe(|| {
        ParquetMetaDataReader::new()
            .with_page_index_policy(PageIndexPolicy::Optional)
            .parse_and_finish(bytes)
    }));
    match read {
        Ok(Ok(metadata)) => finished(metadata, pin, uri, checksum),
        Ok(Err(e)) => Err(parse_error(e, uri, "its footer cannot be read")),
        Err(_) => Err(corrupt(uri, "is damaged: its footer cannot be decoded")),
    }
}

/// Checks a parsed footer and derives the schema.
fn finished(metadata: ParquetMetaData, pin: &Pin, uri: &Arc<str>, checksum: u64) -> Result<Footer> {
    let metadata = corrected(metadata, uri)?;
    check(&metadata, pin, uri)?;
    let file = metadata.file_metadata();
    let schema = catch_unwind(AssertUnwindSafe(|| {
        parquet_to_arrow_schema(file.schema_descr(), file.key_value_metadata())
    }));
    let schema: Schema = match schema {
        Ok(Ok(schema)) => schema,
        Ok(Err(e)) => return Err(parse_error(e, uri, "its schema cannot be read")),
        Err(_) => return Err(corrupt(uri, "is damaged: its schema cannot be decoded")),
    };
    let Some(schema) = int96::as_microseconds(schema, file) else {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("{uri} has INT96 timestamps in columns whose types cannot be told apart"),
        )
        .in_file(Arc::clone(uri))
        .with_hint("write it again with timestamps as INT64 (TIMESTAMP_MICROS in Spark)"));
    };
    let schema = Arc::new(zones::restored(schema, file));
    Ok(Footer { metadata: Arc::new(metadata), schema, checksum })
}

/// XXH64 of a footer: the metadata, its length and the magic number, up to the file's end.
fn checksum(held: &[(Range<u64>, Bytes)], size: u64) -> u64 {
    /// The length of the metadata, and the magic number.
    const END: u64 = 8;
    let mut hash = XxHash64::with_seed(0);
    let Some(mut at) = size.checked_sub(END) else { return hash.finish() };
    // What the decoder has read is there; a part that is not counts as empty.
    let piece = |at: u64| {
        let inside = held.iter().filter(|(r, _)| r.contains(&at)).max_by_key(|(r, _)| r.end);
        inside.map(|(r, bytes)| &bytes[(at - r.start) as usize..])
    };
    let length =
        piece(at).and_then(|b| b.first_chunk::<4>().copied()).map_or(0, u32::from_le_bytes);
    at = at.saturating_sub(u64::from(length));
    while let Some(bytes) = piece(at).filter(|b| !b.is_empty()) {
        hash.write(bytes);
        at += bytes.len() as u64;
    }
    hash.finish()
}

/// Checks the last four bytes, and says what the file may be instead.
fn check_magic(held: &[(Range<u64>, Bytes)], pin: &Pin, uri: &Arc<str>) -> Result<()> {
    let Some((_, tail)) = held.iter().find(|(r, _)| r.end == pin.size) else { return Ok(()) };
    if tail.ends_with(b"PAR1") {
        return Ok(());
    }
    if tail.ends_with(b"PARE") {
        return Err(Error::new(ErrorKind::Unsupported, format!("{uri} is encrypted"))
            .in_file(Arc::clone(uri))
            .with_hint("decrypt it first; Forebay holds no keys"));
    }
    let head = held.iter().find(|(r, _)| r.start == 0).map(|(_, b)| &b[..]);
    let (what, hint) = match head {
        Some(h) if h.starts_with(b"PAR1") => (
            "is truncated: it starts as a Parquet file and its end is missing",
            "copy or write it again",
        ),
        Some(h) if h.starts_with(b"ARROW1") => (
            "is not a Parquet file but an Arrow IPC file",
            "convert it, e.g. with pyarrow.parquet.write_table",
        ),
        Some(h) if h.starts_with(b"{\"forebay_snapshot\"") => (
            "is not a Parquet file but a saved snapshot",
            "open it with fb.read_snapshot, or in a job with parquet: { snapshot: FILE }",
        ),
        Some(h) if h.starts_with(b"\x1f\x8b") => {
            ("is not a Parquet file but gzip data", "unpack it first")
        }
        Some(h) if h.starts_with(b"PK\x03\x04") => {
            ("is not a Parquet file but a zip archive", "unpack it first")
        }
        Some(_) => {
            ("is not a Parquet file", "name only Parquet files, e.g. with a glob such as *.parquet")
        }
        // Too large to have been read whole.
        None => (
            "is not a Parquet file, or is truncated: its last bytes are not a Parquet footer",
            "copy it again, or name only Parquet files",
        ),
    };
    Err(corrupt(uri, what).with_hint(hint))
}

/// Translates an error of the parquet crate about a file.
pub(crate) fn parse_error(e: ParquetError, uri: &Arc<str>, what: &str) -> Error {
    let text = e.to_string();
    let unsupported = matches!(e, ParquetError::NYI(_))
        || text.contains("not supported")
        || text.contains("not yet supported")
        || text.contains("Disabled feature");
    let error = if text.contains("ncrypt") {
        Error::new(ErrorKind::Unsupported, format!("{uri} is encrypted"))
            .with_hint("decrypt it first; Forebay holds no keys")
    } else if unsupported {
        Error::new(ErrorKind::Unsupported, format!("{uri} uses a feature that is not supported"))
    } else {
        Error::new(ErrorKind::Corrupt, format!("{uri} is damaged: {what}"))
            .with_hint("copy or write it again; if other readers accept it, please report it")
    };
    error.in_file(Arc::clone(uri)).with_source(e)
}

/// Corrects what some writers get wrong and what the row groups and pages tell better: a dictionary
/// offset of 0 where there is no dictionary, and a row count of the file that is not the sum of its
/// row groups (the parquet crate would deliver no more rows than that, without a word).
fn corrected(metadata: ParquetMetaData, uri: &Arc<str>) -> Result<ParquetMetaData> {
    let false_offset = |c: &ColumnChunkMetaData| c.dictionary_page_offset().is_some_and(|d| d <= 0);
    let file = metadata.file_metadata();
    let rows = metadata.row_groups().iter().fold(0i64, |n, g| n.saturating_add(g.num_rows()));
    let false_rows = file.num_rows() != rows;
    if !false_rows && !metadata.row_groups().iter().any(|g| g.columns().iter().any(false_offset)) {
        return Ok(metadata);
    }
    let problem = |e| parse_error(e, uri, "its footer cannot be read");
    let file = FileMetaData::new(
        file.version(),
        rows,
        file.created_by().map(str::to_owned),
        file.key_value_metadata().cloned(),
        file.schema_descr_ptr(),
        file.column_orders().cloned(),
    );
    let mut old = metadata.into_builder();
    let mut builder = ParquetMetaDataBuilder::new(file)
        .set_column_index(old.take_column_index())
        .set_offset_index(old.take_offset_index());
    for group in old.take_row_groups() {
        let mut group = group.into_builder();
        let mut columns = Vec::new();
        for column in group.take_columns() {
            columns.push(if false_offset(&column) {
                column.into_builder().set_dictionary_page_offset(None).build().map_err(problem)?
            } else {
                column
            });
        }
        builder =
            builder.add_row_group(group.set_column_metadata(columns).build().map_err(problem)?);
    }
    Ok(builder.build())
}

/// The byte range of a column chunk, checked against nothing yet.
pub(crate) fn chunk_range(column: &ColumnChunkMetaData) -> Option<Range<u64>> {
    let start = column.dictionary_page_offset().unwrap_or_else(|| column.data_page_offset());
    let start = u64::try_from(start).ok()?;
    let len = u64::try_from(column.compressed_size()).ok()?;
    Some(start..start.checked_add(len)?)
}

/// Checks every number of a footer that is used later for sizes, offsets and counts.
fn check(metadata: &ParquetMetaData, pin: &Pin, uri: &Arc<str>) -> Result<()> {
    let leaves = metadata.file_metadata().schema_descr().num_columns();
    let mut rows = 0u64;
    for (index, group) in metadata.row_groups().iter().enumerate() {
        let bad = |what: &str| corrupt(uri, &format!("is damaged: {what}")).in_row_group(index);
        rows = u64::try_from(group.num_rows())
            .ok()
            .and_then(|n| rows.checked_add(n))
            .ok_or_else(|| bad("a row group has an impossible number of rows"))?;
        if group.num_columns() != leaves {
            return Err(bad("a row group has another number of columns than the schema"));
        }
        for column in group.columns() {
            let name = column.column_path().string();
            if column.file_path().is_some_and(|p| !p.is_empty()) {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("{uri} keeps a column in another file"),
                )
                .in_file(Arc::clone(uri))
                .in_column(name));
            }
            let fits = chunk_range(column).is_some_and(|r| r.end <= pin.size);
            if !fits {
                return Err(bad("a column points outside the file").in_column(name));
            }
            if column.num_values() < 0 || column.uncompressed_size() < 0 {
                return Err(bad("a column has a negative size").in_column(name));
            }
        }
    }
    // 2^40 rows of a dataset are beyond any file; a damaged count would be used in allocations.
    if rows > 1 << 40 {
        return Err(corrupt(uri, &format!("is damaged: it claims {rows} rows")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use arrow::array::{Int64Array, RecordBatch};
    use parquet::arrow::ArrowWriter;

    fn file() -> (Bytes, Pin) {
        let column = Arc::new(Int64Array::from_iter_values(0..10)) as _;
        let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let pin = Pin {
            size: bytes.len() as u64,
            e_tag: None,
            version: None,
            mtime_ns: None,
            inode: None,
        };
        (bytes.into(), pin)
    }

    fn footer(bytes: &Bytes, pin: &Pin) -> Result<Footer> {
        match decode(&[(0..pin.size, bytes.clone())], pin, &"f".into())? {
            Step::Done(footer) => Ok(*footer),
            Step::Need(range) => panic!("needs {range:?}"),
        }
    }

    #[test]
    fn a_dictionary_offset_of_zero_is_no_dictionary() {
        let (bytes, pin) = file();
        let metadata = Arc::unwrap_or_clone(footer(&bytes, &pin).unwrap().metadata);
        let mut builder = metadata.into_builder();
        let groups = builder
            .take_row_groups()
            .into_iter()
            .map(|g| {
                let mut g = g.into_builder();
                let columns = g
                    .take_columns()
                    .into_iter()
                    .map(|c| c.into_builder().set_dictionary_page_offset(Some(0)).build().unwrap())
                    .collect();
                g.set_column_metadata(columns).build().unwrap()
            })
            .collect();
        let metadata = builder.set_row_groups(groups).build();
        assert_eq!(chunk_range(metadata.row_group(0).column(0)).unwrap().start, 0);
        let right = corrected(metadata, &"f".into()).unwrap();
        assert!(chunk_range(right.row_group(0).column(0)).unwrap().start > 0);
        assert!(right.offset_index().is_some(), "the page index is kept");
    }

    #[test]
    fn a_damaged_page_index_is_done_without() {
        let (bytes, pin) = file();
        let good = footer(&bytes, &pin).unwrap();
        let column = good.metadata.row_group(0).column(0);
        let at = column.offset_index_offset().unwrap() as usize;
        let len = column.offset_index_length().unwrap() as usize;
        let column_at = column.column_index_offset().unwrap() as usize;
        let column_len = column.column_index_length().unwrap() as usize;
        let mut bad = bytes.to_vec();
        bad[at..at + len].fill(0xff);
        bad[column_at..column_at + column_len].fill(0xff);
        let found = footer(&bad.into(), &pin).unwrap();
        assert!(found.metadata.offset_index().is_none());
        assert_eq!(found.schema, good.schema);
    }
}
