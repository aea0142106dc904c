//! `forebay_batch`: the columns of a batch, described once so that C reads plain structs.

use std::ffi::{CString, c_char, c_void};

use arrow::array::Array;
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema, to_ffi};
use forebay_core::{Error, ErrorKind, Result, suggest};
use forebay_feed::batch::tensor_field;
use forebay_feed::dlpack::{DLDataType, data_type};
use forebay_feed::{Batch as Inner, Column as Values, Dense};

use crate::border::{Errors, Place, Status, answer, c_string, given, take_back, text};

/// `forebay_kind`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One tensor whose first axis is the batch.
    Dense = 0,
    /// One tensor for each sample.
    Each = 1,
    /// All elements, and where each sample's begin.
    Ragged = 2,
    /// What only Arrow describes.
    Arrow = 3,
}

/// `forebay_tensor`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Tensor {
    data: *mut c_void,
    dtype: DLDataType,
    ndim: i32,
    shape: *const i64,
    nbytes: u64,
}

/// `forebay_column`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Column {
    name: *const c_char,
    kind: Kind,
    tensor_count: usize,
    tensors: *const Tensor,
}

/// A batch, and what its columns' structs point to.
pub struct Batch {
    inner: Inner,
    columns: Vec<Described>,
}

struct Described {
    name: CString,
    kind: Kind,
    tensors: Vec<Tensor>,
    /// The axes of all tensors: what their `shape` points into.
    _shapes: Vec<i64>,
}

impl Described {
    fn new(name: &str, values: &Values) -> Result<Self> {
        let (kind, dense): (Kind, Vec<&Dense>) = match values {
            Values::Dense(tensor) => (Kind::Dense, vec![tensor]),
            Values::Each(all) => (Kind::Each, all.iter().collect()),
            Values::Ragged { values, offsets } => (Kind::Ragged, vec![values, offsets]),
            Values::Arrow { .. } => (Kind::Arrow, Vec::new()),
        };
        let too_large = |_| Error::internal("a tensor is too large for its description");
        let axes = dense.iter().flat_map(|tensor| &tensor.shape);
        // Complete before anything points into it.
        let shapes: Vec<i64> =
            axes.map(|n| i64::try_from(*n).map_err(too_large)).collect::<Result<_>>()?;
        let mut tensors = Vec::with_capacity(dense.len());
        let mut rest = shapes.as_slice();
        for tensor in dense {
            let (shape, behind) = rest.split_at(tensor.shape.len());
            rest = behind;
            tensors.push(Tensor {
                data: tensor.as_ptr().cast_mut().cast(),
                dtype: data_type(tensor.dtype),
                ndim: i32::try_from(shape.len()).map_err(too_large)?,
                shape: shape.as_ptr(),
                nbytes: tensor.byte_len() as u64,
            });
        }
        Ok(Self { name: c_string(name), kind, tensors, _shapes: shapes })
    }
}

impl Batch {
    /// The batch with its description.
    pub fn new(inner: Inner) -> Result<Self> {
        let all = inner.columns.iter();
        let columns =
            all.map(|(name, values)| Described::new(name, values)).collect::<Result<_>>()?;
        Ok(Self { inner, columns })
    }

    fn check(&self, index: usize) -> Result<()> {
        let count = self.columns.len();
        if index < count {
            return Ok(());
        }
        Err(Error::invalid(format!("there is no column {index}: the batch has {count}")))
    }

    fn find(&self, name: &str) -> Result<usize> {
        let mut names = self.inner.columns.iter().map(|(name, _)| &**name);
        names.position(|known| known == name).ok_or_else(|| {
            let names = self.inner.columns.iter().map(|(name, _)| &**name);
            Error::new(ErrorKind::NotFound, format!("there is no column {name:?} in the batch"))
                .with_hint(suggest::hint(name, names))
        })
    }

    /// A column in Arrow's C structs, which keep the memory.
    fn arrow(&self, index: usize) -> Result<(FFI_ArrowArray, FFI_ArrowSchema)> {
        self.check(index)?;
        let (name, column) = &self.inner.columns[index];
        let (values, field) = match column {
            Values::Arrow { values, field } => (values.clone(), field.as_ref().clone()),
            Values::Dense(dense) => {
                let row = dense.shape.get(1..).unwrap_or_default();
                (dense.to_arrow()?, tensor_field(name, dense.dtype, row)?)
            }
            Values::Each(_) | Values::Ragged { .. } => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "tensors of different shapes have no Arrow form yet",
                )
                .in_column(&**name)
                .with_hint("read the column's tensors"));
            }
        };
        let failed = |e| Error::internal("a column does not fit Arrow's C structs").with_source(e);
        let schema = FFI_ArrowSchema::try_from(&field).map_err(failed)?;
        let (array, _) = to_ffi(&values.to_data()).map_err(failed)?;
        Ok((array, schema))
    }
}

/// The number of rows and of columns.
///
/// # Safety
/// `batch` is NULL or was not released; the others are NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_batch_size(
    batch: *const Batch,
    rows: *mut u64,
    columns: *mut usize,
    error: Errors,
) -> Status {
    let work = || {
        // SAFETY: this function's own contract.
        let (rows, columns) = unsafe { (Place::at(rows, "rows")?, Place::at(columns, "columns")?) };
        // SAFETY: likewise.
        let batch = unsafe { given(batch, "batch") }?;
        rows.put(batch.inner.rows as u64);
        columns.put(batch.columns.len());
        Ok(Status::Ok)
    };
    // SAFETY: this function's own contract.
    unsafe { answer(error, work) }
}

/// The place of the column of that name.
///
/// # Safety
/// `batch` is NULL or was not released; `name` is NULL or ends with a NUL; the others are NULL or can be
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_batch_find(
    batch: *const Batch,
    name: *const c_char,
    index: *mut usize,
    error: Errors,
) -> Status {
    let work = || {
        // SAFETY: this function's own contract.
        let place = unsafe { Place::at(index, "index") }?;
        // SAFETY: likewise.
        let (batch, name) = unsafe { (given(batch, "batch")?, text(name, "name")?) };
        place.put(batch.find(name)?);
        Ok(Status::Ok)
    };
    // SAFETY: this function's own contract.
    unsafe { answer(error, work) }
}

/// The column at that place. What the struct points to stays until the batch is released.
///
/// # Safety
/// `batch` is NULL or was not released; the others are NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_batch_column(
    batch: *const Batch,
    index: usize,
    column: *mut Column,
    error: Errors,
) -> Status {
    let work = || {
        // SAFETY: this function's own contract.
        let (batch, place) = unsafe { (given(batch, "batch")?, Place::at(column, "column")?) };
        batch.check(index)?;
        let found = &batch.columns[index];
        place.put(Column {
            name: found.name.as_ptr(),
            kind: found.kind,
            tensor_count: found.tensors.len(),
            tensors: found.tensors.as_ptr(),
        });
        Ok(Status::Ok)
    };
    // SAFETY: this function's own contract.
    unsafe { answer(error, work) }
}

/// The column at that place in Arrow's C structs, which keep its memory until they are released.
///
/// # Safety
/// `batch` is NULL or was not released; the others are NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_batch_arrow(
    batch: *const Batch,
    index: usize,
    array: *mut FFI_ArrowArray,
    schema: *mut FFI_ArrowSchema,
    error: Errors,
) -> Status {
    let work = || {
        // SAFETY: this function's own contract.
        let (array, schema) = unsafe { (Place::at(array, "array")?, Place::at(schema, "schema")?) };
        // SAFETY: likewise.
        let (values, field) = unsafe { given(batch, "batch") }?.arrow(index)?;
        array.put(values);
        schema.put(field);
        Ok(Status::Ok)
    };
    // SAFETY: this function's own contract.
    unsafe { answer(error, work) }
}

/// Gives a batch's memory back.
///
/// # Safety
/// `batch` is NULL, or a batch that was not released and is used by no other thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_batch_release(batch: *mut Batch) {
    // SAFETY: the same contract; batches are handed out as boxes.
    unsafe { take_back(batch) };
}

#[cfg(test)]
mod tests;
