//! Loaders and their epochs.

use std::sync::Mutex;

use forebay::{Batch, Column, Format, Share};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{detached, to_python};
use crate::tensor::{self, ArrowBatch};

/// A loader; see `forebay.Loader` for the face that users see.
#[pyclass(frozen, module = "forebay._forebay")]
pub struct Loader(forebay::Loader);

impl Loader {
    pub fn new(inner: forebay::Loader) -> Self {
        Self(inner)
    }
}

#[pymethods]
impl Loader {
    fn __len__(&self) -> usize {
        usize::try_from(self.0.len()).unwrap_or(usize::MAX)
    }

    /// Starts the current epoch: of its steps number `first` and every `stride`-th from there.
    #[pyo3(signature = (first=0, stride=1))]
    fn start(&self, py: Python<'_>, first: u64, stride: u64) -> PyResult<Epoch> {
        let inner = self.0.clone();
        let epoch = detached(py, |_| inner.iter_share(Share { first, stride }))?;
        Ok(Epoch::new(Box::new(epoch), self.0.options().format))
    }

    #[getter]
    fn epoch(&self) -> u64 {
        self.0.epoch()
    }

    /// Rank and world size.
    #[getter]
    fn world(&self) -> (u64, u64) {
        let schedule = self.0.schedule();
        (schedule.spec().rank, schedule.spec().world_size)
    }

    fn set_world(&self, py: Python<'_>, rank: u64, world_size: u64) -> PyResult<()> {
        self.0.set_world(rank, world_size).map_err(|e| to_python(py, &e))
    }

    /// The position as JSON.
    fn state(&self, py: Python<'_>) -> String {
        py.detach(|| self.0.state().to_json())
    }

    /// The position at which the next loop begins, as JSON.
    fn next_state(&self, py: Python<'_>) -> String {
        py.detach(|| self.0.next_state().to_json())
    }

    /// Goes on from a position in JSON; an empty one changes nothing.
    fn load_state(&self, py: Python<'_>, json: &str) -> PyResult<()> {
        let load = || match forebay::LoaderState::from_json(json)? {
            Some(state) => self.0.load_state(&state),
            None => Ok(()),
        };
        py.detach(load).map_err(|e| to_python(py, &e))
    }

    fn set_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        self.0.set_epoch(epoch).map_err(|e| to_python(py, &e))
    }

    /// Counters and gauges, as JSON.
    fn stats(&self) -> String {
        serde_json::Value::Object(self.0.counters()).to_string()
    }

    /// Rows of one epoch over all ranks; of the source, where they are multiplied.
    #[getter]
    fn rows(&self) -> u64 {
        self.0.schedule().rows()
    }
}

/// One state in JSON out of those of all ranks.
#[pyfunction]
pub fn merge_states(py: Python<'_>, states: Vec<String>) -> PyResult<String> {
    let merge = || {
        let states = states.iter().enumerate().map(|(n, json)| {
            let state = forebay::LoaderState::from_json(json)
                .map_err(|e| e.map_place(|_| format!("merge_states(states[{n}])")))?;
            state.ok_or_else(|| {
                forebay::Error::invalid(format!("state {n} is empty"))
                    .at_place("merge_states(...)")
                    .with_hint("give what loader.state_dict() gave on every rank")
            })
        });
        let states = states.collect::<forebay::Result<Vec<_>>>()?;
        forebay::merge_states(&states).map(|state| state.to_json())
    };
    py.detach(merge).map_err(|e| to_python(py, &e))
}

/// The batches of one epoch.
#[pyclass(frozen, module = "forebay._forebay")]
pub struct Epoch {
    inner: Mutex<State>,
    format: Format,
    pid: u32,
}

/// Where batches come from: an epoch of this process, or one that a sidecar runs.
pub trait Batches: Send {
    /// The next one; an error of `tick` leaves the epoch as it is.
    fn next_with(&mut self, tick: forebay::Tick<'_>) -> Option<forebay::Result<Batch>>;
}

impl Batches for forebay::Epoch {
    fn next_with(&mut self, tick: forebay::Tick<'_>) -> Option<forebay::Result<Batch>> {
        Self::next_with(self, tick)
    }
}

impl Batches for forebay::remote::Epoch {
    fn next_with(&mut self, tick: forebay::Tick<'_>) -> Option<forebay::Result<Batch>> {
        Self::next_with(self, tick)
    }
}

type Running = Box<dyn Batches>;

enum State {
    Ready(Running),
    /// A thread is in `next` with it.
    Busy,
    /// Exhausted, failed or closed; a thread that is in `next` drops it when it comes back.
    Over,
}

impl Epoch {
    /// A running epoch of this process.
    pub fn new(running: Running, format: Format) -> Self {
        Self { inner: Mutex::new(State::Ready(running)), format, pid: std::process::id() }
    }

    fn swap(&self, state: State) -> State {
        std::mem::replace(&mut self.inner.lock().unwrap_or_else(|e| e.into_inner()), state)
    }

    /// Gives the epoch back after `next`. It comes out again if it was closed meanwhile.
    fn put(&self, epoch: Running) -> Option<Running> {
        let mut state = self.inner.lock().unwrap_or_else(|e| e.into_inner());
        match &*state {
            State::Over => Some(epoch),
            State::Ready(_) | State::Busy => {
                *state = State::Ready(epoch);
                None
            }
        }
    }

    /// The epoch for one call of `next`; `None` where it is over.
    fn take(&self) -> PyResult<Option<Running>> {
        let mut state = self.inner.lock().unwrap_or_else(|e| e.into_inner());
        match std::mem::replace(&mut *state, State::Busy) {
            State::Ready(epoch) => Ok(Some(epoch)),
            State::Busy => Err(PyRuntimeError::new_err(
                "another thread waits for this iterator's next batch; \
                 put a lock around next(), or give each thread a loader of its own",
            )),
            State::Over => {
                *state = State::Over;
                Ok(None)
            }
        }
    }

    fn close_inner(&self) -> Option<Running> {
        match self.swap(State::Over) {
            State::Ready(epoch) => Some(epoch),
            State::Busy | State::Over => None,
        }
    }
}

#[pymethods]
impl Epoch {
    /// The next batch, or None at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        if std::process::id() != self.pid {
            return Err(PyRuntimeError::new_err(
                "this iterator was started in the parent process, and its threads do not exist here; \
                 call iter(loader) in the forked process instead",
            ));
        }
        let Some(mut epoch) = self.take()? else { return Ok(None) };
        let next = match detached(py, |tick| Ok(epoch.next_with(tick))) {
            Ok(next) => next,
            Err(raised) => {
                // Ctrl-C ended the wait, not the epoch: the user may go on.
                let closed = self.put(epoch);
                py.detach(|| drop(closed));
                return Err(raised);
            }
        };
        match next {
            Some(Ok(batch)) => {
                let closed = self.put(epoch);
                py.detach(|| drop(closed));
                to_object(py, &batch, self.format).map(Some)
            }
            ended => {
                self.swap(State::Over);
                py.detach(|| drop(epoch));
                ended.transpose().map(|_| None).map_err(|e| to_python(py, &e))
            }
        }
    }

    /// Stops the epoch's background work and waits until it has stopped.
    fn close(&self, py: Python<'_>) {
        if std::process::id() == self.pid {
            let epoch = self.close_inner();
            py.detach(|| drop(epoch));
        } else {
            // The threads that it would join are the parent's.
            std::mem::forget(self.close_inner());
        }
    }
}

impl Drop for Epoch {
    fn drop(&mut self) {
        let epoch = self.close_inner();
        if std::process::id() != self.pid {
            std::mem::forget(epoch);
        } else if epoch.is_some() {
            // Joining threads may wait for one of them to finish a row; none of them needs the
            // interpreter, except to log, so it is let go meanwhile.
            let _ = Python::try_attach(|py| py.detach(|| drop(epoch)));
        }
    }
}

fn to_object(py: Python<'_>, batch: &Batch, format: Format) -> PyResult<Py<PyAny>> {
    if format == Format::Arrow {
        let record = batch.to_arrow().map_err(|e| to_python(py, &e))?;
        return Ok(Py::new(py, ArrowBatch::new(record))?.into_any());
    }
    let out = PyDict::new(py);
    for (name, column) in &batch.columns {
        let value = match column {
            Column::Dense(dense) => tensor::to_object(py, dense.clone(), format)?,
            Column::Each(all) => {
                let items = all
                    .iter()
                    .map(|d| tensor::to_object(py, d.clone(), format))
                    .collect::<PyResult<Vec<_>>>()?;
                items.into_pyobject(py)?.into_any().unbind()
            }
            Column::Ragged { values, offsets } => {
                let values = tensor::to_object(py, values.clone(), format)?;
                let offsets = tensor::to_object(py, offsets.clone(), format)?;
                let make = py.import("forebay._ragged")?.getattr("Ragged")?;
                make.call1((values, offsets))?.unbind()
            }
            Column::Arrow { values, .. } => tensor::to_list(py, values)?,
        };
        out.set_item(&**name, value)?;
    }
    Ok(out.into_any().unbind())
}
