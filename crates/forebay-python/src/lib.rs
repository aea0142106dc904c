//! The native half of the Python package `forebay`.
//!
//! Plans and options cross the border as JSON, checked by the same code as job files. Tensors cross
//! it as DLPack capsules and array interfaces over the batch's slab: no copy, and no interpreter
//! lock while a batch is being waited for.

mod dataset;
mod errors;
mod image;
mod loader;
mod remote;
mod tensor;
mod warnings;

use pyo3::prelude::*;

/// For what Rust allocates in this module; the interpreter and the trainer keep theirs.
#[global_allocator]
static ALLOCATOR: forebay::alloc::Mapped = forebay::alloc::Mapped;

/// The module `forebay._forebay`.
#[pymodule]
fn _forebay(m: &Bound<'_, PyModule>) -> PyResult<()> {
    warnings::install();
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add_class::<dataset::Dataset>()?;
    m.add_class::<dataset::Snapshot>()?;
    m.add_class::<loader::Loader>()?;
    m.add_class::<loader::Epoch>()?;
    m.add_class::<remote::RemoteLoader>()?;
    m.add_class::<tensor::Tensor>()?;
    m.add_class::<tensor::ArrowBatch>()?;
    m.add_function(wrap_pyfunction!(dataset::inspect, m)?)?;
    m.add_function(wrap_pyfunction!(dataset::memory, m)?)?;
    m.add_function(wrap_pyfunction!(image::image_info, m)?)?;
    m.add_function(wrap_pyfunction!(loader::merge_states, m)?)?;
    m.add_function(wrap_pyfunction!(remote::sidecar_status, m)?)?;
    Ok(())
}
