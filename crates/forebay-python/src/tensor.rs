//! Tensors over slabs, and Arrow batches.

use std::ffi::{CStr, c_void};

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::DataType;
use forebay::dlpack::{
    DEVICE_CPU, DLManagedTensor, DLManagedTensorVersioned, managed, managed_versioned,
};
use forebay::{DType, Dense, Error, ErrorKind, Format};
use pyo3::exceptions::{PyBufferError, PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyCapsule, PyDict, PyList, PyString, PyTuple};
use pyo3_arrow::{PyArray, PyRecordBatch};

use crate::errors::to_python;

/// A dense tensor over a batch's slab: `__dlpack__` and `__array_interface__`, without a copy.
#[pyclass(frozen, module = "forebay._forebay")]
pub struct Tensor(Dense);

const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

/// A capsule whose tensor nobody took is deleted with it.
unsafe extern "C" fn drop_plain(capsule: *mut pyo3::ffi::PyObject) {
    // SAFETY: Python calls this once with the capsule that `__dlpack__` made. A consumer renames
    // the capsule when it takes the tensor; only under the first name is the tensor still ours.
    unsafe {
        if pyo3::ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) == 1 {
            let tensor = pyo3::ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr());
            let tensor = tensor.cast::<DLManagedTensor>();
            if let Some(delete) = (*tensor).deleter {
                delete(tensor);
            }
        }
    }
}

unsafe extern "C" fn drop_versioned(capsule: *mut pyo3::ffi::PyObject) {
    // SAFETY: as for `drop_plain`.
    unsafe {
        if pyo3::ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            let tensor = pyo3::ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr());
            let tensor = tensor.cast::<DLManagedTensorVersioned>();
            if let Some(delete) = (*tensor).deleter {
                delete(tensor);
            }
        }
    }
}

fn capsule<'py>(
    py: Python<'py>,
    pointer: *mut c_void,
    name: &'static CStr,
    destructor: unsafe extern "C" fn(*mut pyo3::ffi::PyObject),
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the pointer is not null and stays valid until its deleter is called, which the
    // destructor or the consumer does; the name is static.
    unsafe {
        let made = pyo3::ffi::PyCapsule_New(pointer, name.as_ptr(), Some(destructor));
        Bound::from_owned_ptr_or_err(py, made)
    }
}

fn plain_capsule<'py>(py: Python<'py>, dense: Dense) -> PyResult<Bound<'py, PyAny>> {
    capsule(py, managed(dense).cast(), PLAIN, drop_plain)
}

#[pymethods]
impl Tensor {
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.shape)
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.dtype.name()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.0.byte_len()
    }

    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = stream;
        if dl_device.is_some_and(|d| d != (DEVICE_CPU, 0)) {
            return Err(PyBufferError::new_err("the tensor is in CPU memory"));
        }
        if copy == Some(true) {
            return Err(PyBufferError::new_err("make the copy with the consumer's own means"));
        }
        if max_version.is_some_and(|(major, _)| major >= 1) {
            return capsule(
                py,
                managed_versioned(self.0.clone()).cast(),
                VERSIONED,
                drop_versioned,
            );
        }
        plain_capsule(py, self.0.clone())
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (DEVICE_CPU, 0)
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let typestr = match self.0.dtype {
            DType::Bool => "|b1",
            DType::UInt8 => "|u1",
            DType::Int8 => "|i1",
            DType::UInt16 => "<u2",
            DType::Int16 => "<i2",
            DType::UInt32 => "<u4",
            DType::Int32 => "<i4",
            DType::UInt64 => "<u8",
            DType::Int64 => "<i8",
            DType::Float16 => "<f2",
            DType::Float32 => "<f4",
            DType::Float64 => "<f8",
            DType::BFloat16 => {
                return Err(PyTypeError::new_err(
                    "NumPy has no bfloat16; use dtype=\"float32\" or \"float16\", or format=\"torch\"",
                ));
            }
        };
        let out = PyDict::new(py);
        out.set_item("version", 3)?;
        out.set_item("shape", self.shape(py)?)?;
        out.set_item("typestr", typestr)?;
        out.set_item("data", (self.0.as_ptr() as usize, false))?;
        Ok(out)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a Tensor is a view of the engine's memory and cannot be pickled or copied; copy it with \
             numpy.array(tensor), or pass the Dataset and make the loader in the worker",
        ))
    }

    fn __repr__(&self) -> String {
        format!("forebay.Tensor(shape={:?}, dtype={})", self.0.shape, self.0.dtype)
    }
}

/// The tensor as the format's object.
pub fn to_object(py: Python<'_>, dense: Dense, format: Format) -> PyResult<Py<PyAny>> {
    static FROM_DLPACK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static AS_ARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    match format {
        Format::Torch => {
            if dense.elements() == 0 {
                // torch refuses some capsules without memory; nothing is shared anyway.
                return empty_torch(py, &dense);
            }
            let from = FROM_DLPACK.get_or_try_init(py, || {
                Ok::<_, PyErr>(py.import("torch.utils.dlpack")?.getattr("from_dlpack")?.unbind())
            })?;
            from.call1(py, (plain_capsule(py, dense)?,))
        }
        Format::Numpy => {
            let as_array = AS_ARRAY.get_or_try_init(py, || {
                Ok::<_, PyErr>(py.import("numpy")?.getattr("asarray")?.unbind())
            })?;
            as_array.call1(py, (Tensor(dense),))
        }
        Format::Arrow | Format::Dlpack => Ok(Py::new(py, Tensor(dense))?.into_any()),
    }
}

fn empty_torch(py: Python<'_>, dense: &Dense) -> PyResult<Py<PyAny>> {
    let torch = py.import("torch")?;
    let options = PyDict::new(py);
    options.set_item("dtype", torch.getattr(dense.dtype.name())?)?;
    let shape = PyTuple::new(py, &dense.shape)?;
    Ok(torch.call_method("empty", (shape,), Some(&options))?.unbind())
}

/// Strings, bytes and nulls as a list.
pub fn to_list(py: Python<'_>, array: &ArrayRef) -> PyResult<Py<PyAny>> {
    fn collect<'a, T: ?Sized + 'a>(
        py: Python<'_>,
        values: impl Iterator<Item = Option<&'a T>>,
        make: impl Fn(&'a T) -> Py<PyAny>,
    ) -> PyResult<Py<PyAny>> {
        let items: Vec<Py<PyAny>> = values.map(|v| v.map_or_else(|| py.None(), &make)).collect();
        Ok(PyList::new(py, items)?.into_any().unbind())
    }
    let text = |s: &str| PyString::new(py, s).into_any().unbind();
    let bytes = |b: &[u8]| PyBytes::new(py, b).into_any().unbind();
    match array.data_type() {
        DataType::Utf8 => collect(py, array.as_string::<i32>().iter(), text),
        DataType::LargeUtf8 => collect(py, array.as_string::<i64>().iter(), text),
        DataType::Utf8View => collect(py, array.as_string_view().iter(), text),
        DataType::Binary => collect(py, array.as_binary::<i32>().iter(), bytes),
        DataType::LargeBinary => collect(py, array.as_binary::<i64>().iter(), bytes),
        DataType::BinaryView => collect(py, array.as_binary_view().iter(), bytes),
        DataType::FixedSizeBinary(_) => collect(py, array.as_fixed_size_binary().iter(), bytes),
        DataType::Null => {
            let nones: Vec<Py<PyAny>> = (0..array.len()).map(|_| py.None()).collect();
            Ok(PyList::new(py, nones)?.into_any().unbind())
        }
        other => Err(to_python(
            py,
            &Error::new(ErrorKind::Unsupported, format!("no Python form for {other}")),
        )),
    }
}

/// A batch as Arrow: `__arrow_c_array__` for any consumer, columns by name.
#[pyclass(frozen, module = "forebay._forebay")]
pub struct ArrowBatch(RecordBatch);

impl ArrowBatch {
    pub fn new(batch: RecordBatch) -> Self {
        Self(batch)
    }
}

#[pymethods]
impl ArrowBatch {
    #[getter]
    fn num_rows(&self) -> usize {
        self.0.num_rows()
    }

    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.0.schema().fields().iter().map(|f| f.name().clone()).collect()
    }

    fn __getitem__(&self, name: &str) -> PyResult<PyArray> {
        let index = self.0.schema().index_of(name);
        let index = index.map_err(|_| PyKeyError::new_err(name.to_owned()))?;
        let field = std::sync::Arc::new(self.0.schema().field(index).clone());
        let array = std::sync::Arc::clone(self.0.column(index));
        PyArray::try_new(array, field).map_err(|e| PyTypeError::new_err(e.to_string()))
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let inner = Bound::new(py, PyRecordBatch::new(self.0.clone()))?;
        inner.call_method1("__arrow_c_array__", (requested_schema,))
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let inner = Bound::new(py, PyRecordBatch::new(self.0.clone()))?;
        inner.call_method0("__arrow_c_schema__")
    }

    /// The batch as a `pyarrow.RecordBatch`, without a copy.
    fn to_pyarrow<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("pyarrow")?.call_method1("record_batch", (slf,))
    }

    fn __len__(&self) -> usize {
        self.0.num_rows()
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "an ArrowBatch is a view of the engine's memory and cannot be pickled or copied; pass \
             batch.to_pyarrow(), or pass the Dataset and make the loader in the worker",
        ))
    }

    fn __repr__(&self) -> String {
        format!("forebay.ArrowBatch({} rows, columns {:?})", self.0.num_rows(), self.column_names())
    }
}
