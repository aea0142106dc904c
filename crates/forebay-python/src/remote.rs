//! Loaders that a sidecar serves.

use std::path::PathBuf;
use std::time::Duration;

use forebay::{Format, LoaderOptions, remote};
use pyo3::prelude::*;

use crate::dataset::Dataset;
use crate::errors::{detached, to_python};
use crate::loader::Epoch;

/// A loader over a connection; see `forebay.SidecarLoader` for the face that users see. It has the methods
/// of [`crate::loader::Loader`].
#[pyclass(frozen, module = "forebay._forebay")]
pub struct RemoteLoader {
    inner: remote::Loader,
    format: Format,
}

#[pymethods]
impl RemoteLoader {
    /// Opens a loader at the sidecar of a socket, from options as JSON. It may be gone for `patience`
    /// seconds at a time.
    #[new]
    fn new(
        py: Python<'_>,
        socket: PathBuf,
        dataset: &Dataset,
        options: &str,
        patience: f64,
    ) -> PyResult<Self> {
        let options = LoaderOptions::from_json(options).map_err(|e| to_python(py, &e))?;
        let patience = Duration::try_from_secs_f64(patience).unwrap_or(Duration::MAX);
        let format = options.format;
        let inner =
            detached(py, |tick| remote::open(dataset.inner(), &options, &socket, patience, tick))?;
        Ok(Self { inner, format })
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.inner.facts().steps).unwrap_or(usize::MAX)
    }

    #[pyo3(signature = (first=0, stride=1))]
    fn start(&self, py: Python<'_>, first: u64, stride: u64) -> PyResult<Epoch> {
        let epoch = detached(py, |tick| self.inner.start(first, stride, tick))?;
        Ok(Epoch::new(Box::new(epoch), self.format))
    }

    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        let state = forebay::LoaderState::from_json(&self.inner.facts().state);
        Ok(state.map_err(|e| to_python(py, &e))?.map_or(0, |state| state.epoch))
    }

    #[getter]
    fn world(&self) -> (u64, u64) {
        let facts = self.inner.facts();
        (facts.rank, facts.world_size)
    }

    #[getter]
    fn rows(&self) -> u64 {
        self.inner.facts().rows
    }

    /// How often the sidecar was gone and came back.
    #[getter]
    fn pauses(&self) -> u64 {
        self.inner.pauses()
    }

    #[getter]
    fn pinned(&self) -> bool {
        self.inner.is_pinned()
    }

    fn set_world(&self, py: Python<'_>, rank: u64, world_size: u64) -> PyResult<()> {
        detached(py, |tick| self.inner.set_world(rank, world_size, tick))
    }

    fn state(&self) -> String {
        self.inner.facts().state
    }

    fn next_state(&self) -> String {
        self.inner.facts().next
    }

    fn load_state(&self, py: Python<'_>, json: &str) -> PyResult<()> {
        detached(py, |tick| self.inner.load_state(json, tick))
    }

    fn set_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        detached(py, |tick| self.inner.set_epoch(epoch, tick))
    }

    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        detached(py, |tick| self.inner.stats(tick))
    }
}

/// The status of the sidecar at a socket, as JSON.
#[pyfunction]
pub fn sidecar_status(py: Python<'_>, socket: PathBuf, patience: f64) -> PyResult<String> {
    let patience = Duration::try_from_secs_f64(patience).unwrap_or(Duration::MAX);
    detached(py, |tick| remote::status(&socket, patience, tick))
}
