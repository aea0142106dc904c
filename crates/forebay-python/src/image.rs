//! Pictures outside a pipeline.

use pyo3::prelude::*;

use crate::errors::to_python;

/// Width, height, mode and format of a picture.
#[pyfunction]
pub fn image_info(py: Python<'_>, data: &[u8]) -> PyResult<(u32, u32, &'static str, &'static str)> {
    let info = forebay::image_info(data).map_err(|e| to_python(py, &e))?;
    Ok((info.width, info.height, info.mode.name(), info.format))
}
