//! One decoded block, in the form from which batches are assembled.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt32Array};
use arrow::buffer::{Buffer, MutableBuffer, NullBuffer};
use arrow::datatypes::DataType;
use forebay_core::suggest::{cast_to, in_python, in_sql, not_null};
use forebay_core::{DType, Error, ErrorKind, Result, RowKey};
use forebay_plan::Fill;
use half::{bf16, f16};

use crate::numbers::{Element, Numbers};
use crate::outputs::{DenseSpec, Make, OutputSpec};
use crate::rows::Rows;

/// Where a part's rows come from.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The file, as the user would write it.
    pub file: Arc<str>,
    /// The row group.
    pub row_group: usize,
    /// Row within the file of the part's first row, before any filter.
    pub first_row: u64,
    /// The same in the dataset.
    pub ordinal: u64,
}

/// Where the rows of a part come from.
pub enum Places {
    /// From many places, which only dense rows may: nothing can be wrong with them any more.
    Many,
    /// From one decoded batch.
    Batch {
        /// The batch.
        origin: Origin,
        /// Which of its rows they are; `None` for all.
        kept: Option<UInt32Array>,
        /// Where rows were multiplied, the index of each.
        index: Option<UInt32Array>,
    },
    /// From rows of windows, which were multiplied.
    Items(Items),
}

/// The source rows of a part whose rows were multiplied.
pub struct Items {
    /// The source rows. Their chunks stay as long as the part does, which may point into them.
    pub rows: Rows,
    /// Which of them each row comes from.
    pub kept: UInt32Array,
    /// The index of each.
    pub index: UInt32Array,
    /// The pass over the source, which is the epoch of the draws.
    pub pass: u64,
}

/// Rows of one block, ready to be gathered.
pub struct Part {
    /// Where they come from.
    pub places: Places,
    /// Number of rows.
    pub rows: usize,
    /// One entry per output.
    pub columns: Vec<PartColumn>,
}

/// The values of one output column.
pub enum PartColumn {
    /// Fixed-width rows, one after the other.
    Dense(Buffer),
    /// An Arrow array.
    Arrow(ArrayRef),
}

impl Part {
    /// Converts a relational result.
    pub fn new(outputs: &[OutputSpec], batch: &RecordBatch, places: Places) -> Result<Self> {
        let mut part = Self { places, rows: batch.num_rows(), columns: Vec::new() };
        part.columns =
            outputs.iter().map(|output| part.column(output, batch)).collect::<Result<Vec<_>>>()?;
        Ok(part)
    }

    fn column(&self, output: &OutputSpec, batch: &RecordBatch) -> Result<PartColumn> {
        Ok(match &output.make {
            Make::Dense(spec) => PartColumn::Dense(self.dense(spec, batch)?),
            Make::Label(spec) => PartColumn::Dense(self.dense(&spec.dense, batch)?),
            Make::Image(spec) => PartColumn::Arrow(Arc::clone(batch.column(spec.from))),
            Make::Encode(spec) => PartColumn::Arrow(Arc::clone(batch.column(spec.image.from))),
            Make::List(spec) => PartColumn::Arrow(Arc::clone(batch.column(spec.from))),
            // Dictionaries and views are unpacked for the rows of a batch, not for a whole block:
            // there the values may not fit 32-bit offsets.
            Make::Arrow { from, .. } => PartColumn::Arrow(Arc::clone(batch.column(*from))),
        })
    }

    /// The decoded batch that a row comes from, and which of its rows it is.
    fn source(&self, row: usize) -> Option<(&Origin, u64)> {
        match &self.places {
            Places::Many => None,
            Places::Batch { origin, kept, .. } => Some((origin, source_row(kept.as_ref(), row))),
            Places::Items(items) => {
                let (part, row) = items.rows.sample(*items.kept.values().get(row)? as usize)?;
                part.source(row)
            }
        }
    }

    /// The key of a row's draws in an epoch.
    pub fn key(&self, seed: u64, epoch: u64, row: usize) -> RowKey {
        let ordinal = self.source(row).map_or(0, |(origin, row)| origin.ordinal + row);
        let (epoch, index) = match &self.places {
            Places::Many => (epoch, None),
            Places::Batch { index, .. } => (epoch, index.as_ref()),
            Places::Items(items) => (items.pass, Some(&items.index)),
        };
        let index = index.and_then(|index| index.values().get(row)).copied().unwrap_or(0);
        RowKey { seed, epoch, ordinal, index }
    }

    /// Names file, row group and row in an error.
    pub fn locate(&self, error: Error, row: usize) -> Error {
        let Some((origin, row)) = self.source(row) else { return error };
        error
            .in_file(Arc::clone(&origin.file))
            .in_row_group(origin.row_group)
            .at_row(origin.first_row + row)
    }

    /// The same for an error that names the row of a batch: it is replaced.
    pub fn relocate(&self, error: Error, row: usize) -> Error {
        let file_row = self.source(row).map(|(origin, row)| origin.first_row + row);
        self.locate(error.map_row(|named| file_row.unwrap_or(named)), row)
    }

    /// Bytes that the part keeps in memory.
    pub fn bytes(&self) -> u64 {
        let columns: usize = self
            .columns
            .iter()
            .map(|c| match c {
                PartColumn::Dense(b) => b.len(),
                PartColumn::Arrow(a) => a.get_array_memory_size(),
            })
            .sum();
        let places = match &self.places {
            Places::Many => 0,
            Places::Batch { kept, .. } => kept.as_ref().map_or(0, |k| k.len() * 4),
            Places::Items(items) => items.kept.len() * 8,
        };
        (columns + places) as u64
    }

    /// The same without what views point to, which others keep.
    pub fn own_bytes(&self) -> u64 {
        let shared: usize = self
            .columns
            .iter()
            .map(|c| match c {
                PartColumn::Arrow(a)
                    if matches!(a.data_type(), DataType::BinaryView | DataType::Utf8View) =>
                {
                    a.get_array_memory_size().saturating_sub(a.len() * size_of::<u128>())
                }
                _ => 0,
            })
            .sum();
        self.bytes().saturating_sub(shared as u64)
    }

    fn dense(&self, spec: &DenseSpec, batch: &RecordBatch) -> Result<Buffer> {
        if let ([from], false) = (spec.from.as_slice(), is_stack(spec, batch)) {
            return self.single(spec, batch.column(*from));
        }
        let mut out = MutableBuffer::with_capacity(batch.num_rows() * spec.width());
        self.dense_into(spec, batch, &mut out)?;
        Ok(out.into())
    }

    /// Converts a relational result whose outputs are all dense. Its rows replace what `columns`
    /// hold, whose memory serves again.
    pub fn convert(
        outputs: &[OutputSpec],
        batch: &RecordBatch,
        origin: Origin,
        kept: Option<UInt32Array>,
        columns: &mut [MutableBuffer],
    ) -> Result<()> {
        let rows = batch.num_rows();
        let places = Places::Batch { origin, kept, index: None };
        let part = Self { places, rows, columns: Vec::new() };
        for (output, out) in outputs.iter().zip(columns) {
            let Make::Dense(spec) = &output.make else {
                return Err(Error::internal("a dense window has a column that is not dense"));
            };
            part.dense_into(spec, batch, out)?;
        }
        Ok(())
    }

    /// Makes `out` the rows of an output.
    fn dense_into(
        &self,
        spec: &DenseSpec,
        batch: &RecordBatch,
        out: &mut MutableBuffer,
    ) -> Result<()> {
        if let ([from], false) = (spec.from.as_slice(), is_stack(spec, batch)) {
            out.clear();
            out.extend_from_slice(&self.single(spec, batch.column(*from))?);
            return Ok(());
        }
        match spec.dtype {
            DType::Float32 => self.stack::<f32>(spec, batch, out),
            DType::Float64 => self.stack::<f64>(spec, batch, out),
            DType::Float16 => self.stack::<f16>(spec, batch, out),
            DType::BFloat16 => {
                let mut wide = MutableBuffer::with_capacity(batch.num_rows() * spec.width() * 2);
                self.stack::<f32>(spec, batch, &mut wide)?;
                out.clear();
                let halves = wide.typed_data::<f32>().iter().map(|v| bf16::from_f32(*v).to_bits());
                out.extend(halves);
                Ok(())
            }
            DType::Int8 => self.stack::<i8>(spec, batch, out),
            DType::Int16 => self.stack::<i16>(spec, batch, out),
            DType::Int32 => self.stack::<i32>(spec, batch, out),
            DType::Int64 => self.stack::<i64>(spec, batch, out),
            DType::UInt8 | DType::Bool => self.stack::<u8>(spec, batch, out),
            DType::UInt16 => self.stack::<u16>(spec, batch, out),
            DType::UInt32 => self.stack::<u32>(spec, batch, out),
            DType::UInt64 => self.stack::<u64>(spec, batch, out),
        }
    }

    /// One column as it is: no conversion, and no copy where there are no nulls.
    fn single(&self, spec: &DenseSpec, array: &ArrayRef) -> Result<Buffer> {
        let fill = spec.fill.first().copied().flatten();
        let name = spec.names.first().map_or("", |n| &**n);
        if let Some(list) = array.as_fixed_size_list_opt() {
            if list.null_count() > 0 {
                return Err(self.null_error(name, list.nulls(), 0, true));
            }
            let n = spec.row.first().copied().unwrap_or(0);
            let values = list.values().slice(list.value_offset(0) as usize, list.len() * n);
            return self.flat(name, spec.dtype, fill, &values, Some(n.max(1)));
        }
        self.flat(name, spec.dtype, fill, array, None)
    }

    /// The values of a primitive array, nulls filled; `per_list` of them are one row's list.
    fn flat(
        &self,
        name: &str,
        dtype: DType,
        fill: Option<Fill>,
        array: &ArrayRef,
        per_list: Option<usize>,
    ) -> Result<Buffer> {
        let nulls = array.nulls().filter(|n| n.null_count() > 0);
        let size = dtype.size();
        let bytes: Buffer = if let Some(bools) = array.as_boolean_opt() {
            let bits = bools.values();
            Buffer::from_vec((0..bits.len()).map(|i| u8::from(bits.value(i))).collect::<Vec<u8>>())
        } else {
            let data = array.to_data();
            let buffer = data.buffers().first().ok_or_else(|| Error::internal("no values"))?;
            buffer.slice_with_length(data.offset() * size, data.len() * size)
        };
        let Some(nulls) = nulls else { return Ok(bytes) };
        let Some(fill) = fill else {
            let per_row = per_list.unwrap_or(1);
            return Err(self.null_error(name, Some(nulls), per_row, per_list.is_some()));
        };
        let value = fill_bytes(dtype, fill).ok_or_else(|| unfit(name, dtype, fill))?;
        let mut bytes = bytes.to_vec();
        each_null(nulls, |i| bytes[i * size..(i + 1) * size].copy_from_slice(&value[..size]));
        Ok(Buffer::from_vec(bytes))
    }

    fn null_error(
        &self,
        column: &str,
        nulls: Option<&NullBuffer>,
        per_row: usize,
        list: bool,
    ) -> Error {
        let row = nulls.and_then(|n| (0..n.len()).find(|i| n.is_null(*i))).unwrap_or(0);
        let fill = format!("fill nulls with fill={{{}: 0}} in loader()", in_python(column));
        let out = format!("leave such rows out with {}", not_null(column));
        // `per_row` is 0 for a list that is null itself: there is no element to fill. Within a list,
        // IS NOT NULL of the column says nothing.
        let (what, hint) = match (list, per_row) {
            // A job has no `fill`: there a step does it.
            (false, _) => {
                let step = format!("coalesce({}, 0) in a with_column step", in_sql(column));
                ("a null", format!("{fill}, or with {step}, or {out}"))
            }
            (true, 0) => ("a null list", out),
            (true, _) => ("a null within the list", fill),
        };
        let error = Error::new(ErrorKind::Schema, format!("{what} cannot go into a dense tensor"))
            .in_column(column)
            .with_hint(hint);
        self.locate(error, row / per_row.max(1))
    }

    /// Several columns side by side, row-major.
    fn stack<D: Element>(
        &self,
        spec: &DenseSpec,
        batch: &RecordBatch,
        out: &mut MutableBuffer,
    ) -> Result<()> {
        /// Rows that are converted before the next column's turn: their output lines stay in L1.
        const TILE: usize = 512;
        let (rows, n) = (batch.num_rows(), spec.from.len());
        let mut columns = Vec::with_capacity(n);
        for (j, from) in spec.from.iter().enumerate() {
            let array = batch.column(*from);
            let nulls = array.nulls().filter(|x| x.null_count() > 0);
            let fill = spec.fill.get(j).copied().flatten();
            let fill = match (nulls, fill) {
                (None, _) => None,
                (Some(nulls), None) => {
                    return Err(self.null_error(&spec.names[j], Some(nulls), 1, false));
                }
                (Some(_), Some(fill)) => {
                    let value = D::of_fill(fill);
                    Some(value.ok_or_else(|| unfit(&spec.names[j], spec.dtype, fill))?)
                }
            };
            columns.push((Numbers::of(array)?, nulls.cloned(), fill));
        }
        // Every element is written below: only what is new is zeroed first.
        out.resize(rows * n * size_of::<D>(), 0);
        let out = out.typed_data_mut::<D>();
        for start in (0..rows).step_by(TILE) {
            let end = (start + TILE).min(rows);
            for (j, (numbers, nulls, _)) in columns.iter().enumerate() {
                numbers
                    .write(start..end, nulls.as_ref(), &mut out[start * n..end * n], (j, n))
                    .map_err(|row| self.locate(misfit(&spec.names[j], spec.dtype), row))?;
            }
        }
        for (j, (_, nulls, fill)) in columns.iter().enumerate() {
            if let (Some(nulls), Some(fill)) = (nulls, fill) {
                each_null(nulls, |i| out[i * n + j] = *fill);
            }
        }
        Ok(())
    }
}

/// The row of the decoded batch that row `row` of its kept rows is.
pub(crate) fn source_row(kept: Option<&UInt32Array>, row: usize) -> u64 {
    kept.and_then(|k| k.values().get(row)).map_or(row as u64, |r| u64::from(*r))
}

fn is_stack(spec: &DenseSpec, batch: &RecordBatch) -> bool {
    spec.row.len() == 1
        && spec.row[0] == spec.from.len()
        && !matches!(batch.column(spec.from[0]).data_type(), DataType::FixedSizeList(..))
}

pub(crate) fn unfit(column: &str, dtype: DType, fill: Fill) -> Error {
    Error::invalid(format!("fill={} does not fit a column of {dtype}", said(fill)))
        .at_place("loader(fill=...)")
        .in_column(column)
        .with_hint(format!(
            "choose a value of {dtype}, or make the column a float with {}",
            cast_to(column, "DOUBLE")
        ))
}

fn misfit(column: &str, dtype: DType) -> Error {
    Error::new(ErrorKind::Schema, format!("a value does not fit a stack of {dtype}"))
        .in_column(column)
        .with_hint(format!(
            "give stack(dtype=...) a type that holds all values, or bring them into range with with_column({}, ...) first",
            in_python(column)
        ))
}

fn said(fill: Fill) -> String {
    match fill {
        Fill::Int(i) => i.to_string(),
        Fill::Float(f) => f.to_string(),
    }
}

/// A fill value in machine bytes, if the dtype can hold it exactly (floats round).
pub fn fill_bytes(dtype: DType, fill: Fill) -> Option<[u8; 8]> {
    let mut out = [0u8; 8];
    let mut put = |bytes: &[u8]| out[..bytes.len()].copy_from_slice(bytes);
    match dtype {
        DType::Bool => put(&[u8::of_fill(fill).filter(|v| *v <= 1)?]),
        DType::UInt8 => put(&u8::of_fill(fill)?.to_ne_bytes()),
        DType::Int8 => put(&i8::of_fill(fill)?.to_ne_bytes()),
        DType::UInt16 => put(&u16::of_fill(fill)?.to_ne_bytes()),
        DType::Int16 => put(&i16::of_fill(fill)?.to_ne_bytes()),
        DType::UInt32 => put(&u32::of_fill(fill)?.to_ne_bytes()),
        DType::Int32 => put(&i32::of_fill(fill)?.to_ne_bytes()),
        DType::UInt64 => put(&u64::of_fill(fill)?.to_ne_bytes()),
        DType::Int64 => put(&i64::of_fill(fill)?.to_ne_bytes()),
        DType::Float16 => put(&f16::of_fill(fill)?.to_ne_bytes()),
        DType::BFloat16 => put(&bf16::from_f64(fill.as_f64()).to_ne_bytes()),
        DType::Float32 => put(&f32::of_fill(fill)?.to_ne_bytes()),
        DType::Float64 => put(&f64::of_fill(fill)?.to_ne_bytes()),
    }
    Some(out)
}

/// Calls `f` with the index of every null.
fn each_null(nulls: &NullBuffer, mut f: impl FnMut(usize)) {
    let len = nulls.len();
    for (i, word) in nulls.inner().bit_chunks().iter_padded().enumerate() {
        let mut missing = !word;
        while missing != 0 {
            let at = i * 64 + missing.trailing_zeros() as usize;
            if at >= len {
                return;
            }
            f(at);
            missing &= missing - 1;
        }
    }
}
