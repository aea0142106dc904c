//! Batches into Parquet bytes: row groups by encoded size, files by size.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::Array;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use forebay_core::{Error, ErrorKind, Result};
use forebay_plan::ParquetSink;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};

use super::{Finished, Outgoing};

/// Most rows of a row group, however small they are: a reader keeps statistics and a page index for
/// each, and shuffling works on row groups.
const MAX_ROWS: usize = 1 << 20;

/// Where the Parquet writer puts its bytes until they are shipped.
#[derive(Clone, Default)]
struct Outbox(Arc<Mutex<Vec<u8>>>);

impl Outbox {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Outbox {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Open {
    writer: ArrowWriter<Outbox>,
    outbox: Outbox,
    rows: u64,
}

pub(super) struct Encoder {
    schema: SchemaRef,
    properties: WriterProperties,
    run: String,
    row_group_bytes: u64,
    file_bytes: u64,
    open: Option<Open>,
    /// Files begun so far.
    files: usize,
    rows: u64,
    done_bytes: u64,
}

fn failed(e: ParquetError) -> Error {
    let unsupported = matches!(e, ParquetError::NYI(_))
        || e.to_string().contains("not yet supported")
        || e.to_string().contains("not support");
    let kind = if unsupported { ErrorKind::Unsupported } else { ErrorKind::Io };
    Error::new(kind, "cannot encode a batch as Parquet").with_source(e)
}

impl Encoder {
    pub(super) fn new(sink: &ParquetSink, schema: SchemaRef, run: &str) -> Result<Self> {
        let level = ZstdLevel::try_new(sink.compression_level).map_err(|_| {
            Error::invalid(format!("compression_level is {}", sink.compression_level))
                .with_hint("zstd levels are 1 to 22")
        })?;
        let row_group_bytes = sink.row_group_bytes.max(1);
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(level))
            .set_max_row_group_row_count(Some(MAX_ROWS))
            .set_max_row_group_bytes(Some(usize::try_from(row_group_bytes).unwrap_or(usize::MAX)))
            // Page statistics and the offset index let readers fetch parts of row groups.
            .set_statistics_enabled(EnabledStatistics::Page)
            .set_created_by(format!("forebay {}", env!("CARGO_PKG_VERSION")))
            .build();
        let mut this = Self {
            schema,
            properties,
            run: run.to_owned(),
            row_group_bytes,
            file_bytes: sink.file_bytes.max(1),
            open: None,
            files: 0,
            rows: 0,
            done_bytes: 0,
        };
        // A schema that Parquet cannot hold is refused before anything is read.
        this.begin()?;
        Ok(this)
    }

    /// The name of a file: unique to the run, in order.
    pub(super) fn name(&self, file: usize) -> String {
        format!("part-{file:05}-{}.parquet", self.run)
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    pub(super) fn bytes(&self) -> u64 {
        self.done_bytes + self.open.as_ref().map_or(0, |o| encoded(&o.writer))
    }

    fn begin(&mut self) -> Result<&mut Open> {
        if self.open.is_none() {
            let outbox = Outbox::default();
            let writer = ArrowWriter::try_new(
                outbox.clone(),
                Arc::clone(&self.schema),
                Some(self.properties.clone()),
            )
            .map_err(|e| {
                failed(e).with_hint("leave out or convert the column whose type Parquet lacks")
            })?;
            self.open = Some(Open { writer, outbox, rows: 0 });
            self.files += 1;
        }
        self.open.as_mut().ok_or_else(|| Error::internal("no file is open"))
    }

    pub(super) fn write(
        &mut self,
        batch: &RecordBatch,
        queue: &mut VecDeque<Outgoing>,
        finished: &mut Vec<Finished>,
    ) -> Result<()> {
        let given = batch.schema();
        let fits = given.fields().len() == self.schema.fields().len()
            && given
                .fields()
                .iter()
                .zip(self.schema.fields())
                .all(|(a, b)| a.name() == b.name() && a.data_type() == b.data_type());
        if !fits {
            return Err(Error::new(
                ErrorKind::Schema,
                "a batch has another schema than the output",
            ));
        }
        // The writer checks a row group's size once per call, so a large batch goes in by slices of
        // at most an eighth of a row group.
        let bytes: u64 = batch
            .columns()
            .iter()
            .map(|c| c.to_data().get_slice_memory_size().unwrap_or(0) as u64)
            .sum();
        let rows = batch.num_rows();
        let slices = bytes.div_ceil((self.row_group_bytes / 8).max(1)).clamp(1, rows.max(1) as u64);
        let step = rows.div_ceil(slices as usize).max(1);
        let mut at = 0;
        while at < rows {
            let n = step.min(rows - at);
            let slice = batch.slice(at, n);
            let file_bytes = self.file_bytes;
            let open = self.begin()?;
            open.writer.write(&slice).map_err(failed)?;
            open.rows += n as u64;
            let full = encoded(&open.writer) >= file_bytes;
            self.rows += n as u64;
            at += n;
            if full {
                self.end(queue, finished)?;
            }
        }
        self.drain(queue);
        Ok(())
    }

    /// Queues what the open file has encoded.
    fn drain(&mut self, queue: &mut VecDeque<Outgoing>) {
        if let Some(open) = &self.open {
            let bytes = open.outbox.take();
            if !bytes.is_empty() {
                queue.push_back(Outgoing { file: self.files - 1, bytes, last: false });
            }
        }
    }

    /// Completes the open file.
    fn end(&mut self, queue: &mut VecDeque<Outgoing>, finished: &mut Vec<Finished>) -> Result<()> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        open.writer.finish().map_err(failed)?;
        let bytes = open.writer.bytes_written() as u64;
        let file = self.files - 1;
        queue.push_back(Outgoing { file, bytes: open.outbox.take(), last: true });
        self.done_bytes += bytes;
        finished.push(Finished { name: self.name(file), rows: open.rows, bytes });
        Ok(())
    }

    /// Completes the last file. A run without rows still writes one file: it carries the schema.
    pub(super) fn finish(
        &mut self,
        queue: &mut VecDeque<Outgoing>,
        finished: &mut Vec<Finished>,
    ) -> Result<()> {
        if self.files == 0 {
            self.begin()?;
        }
        self.end(queue, finished)
    }
}

fn encoded(writer: &ArrowWriter<Outbox>) -> u64 {
    (writer.bytes_written() + writer.in_progress_size()) as u64
}
