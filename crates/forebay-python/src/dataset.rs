//! Datasets.

use forebay::plan::Plan;
use forebay::{Dataset as Inner, StorageOptions, process_budget};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3_arrow::PySchema;

use crate::errors::{detached, to_python};
use crate::loader::Loader;

/// Files and steps; see `forebay.Dataset` for the face that users see.
#[pyclass(frozen, module = "forebay._forebay")]
pub struct Dataset(Inner);

impl Dataset {
    /// The engine's dataset.
    pub fn inner(&self) -> &Inner {
        &self.0
    }
}

fn parse(py: Python<'_>, plan: &str) -> PyResult<Plan> {
    Plan::from_json(plan).map_err(|e| to_python(py, &e))
}

#[pymethods]
impl Dataset {
    /// Opens a plan: lists its source, reads the footers, checks every step.
    #[staticmethod]
    fn open(py: Python<'_>, plan: &str) -> PyResult<Self> {
        let plan = parse(py, plan)?;
        detached(py, |tick| Inner::from_plan_with(&plan, tick)).map(Self)
    }

    /// The dataset with one more step, given as JSON.
    fn with_step(&self, py: Python<'_>, step: &str) -> PyResult<Self> {
        // A step is read as part of a plan, so that it is checked by the same code; its place is
        // that in the whole plan.
        let whole = self.0.plan();
        let mut plan = whole.clone();
        let source = r#"{"source":{"parquet":"x"},"steps":["#;
        let single = Plan::from_json(&format!("{source}{step}]}}"));
        let single = single.map_err(|e| {
            let at = whole.steps.len();
            to_python(py, &e.map_place(|p| p.replacen("steps[0]", &format!("steps[{at}]"), 1)))
        })?;
        plan.steps.extend(single.steps);
        let Some(last) = plan.steps.pop() else { return Ok(Self(self.0.clone())) };
        detached(py, |_| self.0.step(last)).map(Self)
    }

    /// The plan as JSON.
    fn plan(&self) -> String {
        self.0.plan().to_json()
    }

    /// Column names and types in words, in order.
    fn columns(&self, py: Python<'_>) -> PyResult<Vec<(String, String)>> {
        let explain = detached(py, |_| self.0.explain())?;
        Ok(explain.columns)
    }

    /// The Arrow schema, as an object with `__arrow_c_schema__`.
    fn schema(&self, py: Python<'_>) -> PyResult<PySchema> {
        self.0.schema().map(PySchema::new).map_err(|e| to_python(py, &e))
    }

    /// The number of rows.
    fn count(&self, py: Python<'_>) -> PyResult<u64> {
        detached(py, |tick| self.0.count_with(process_budget()?, tick))
    }

    /// What would be done: text, or JSON.
    #[pyo3(signature = (json = false))]
    fn explain(&self, py: Python<'_>, json: bool) -> PyResult<String> {
        let explain = detached(py, |_| self.0.explain())?;
        Ok(if json { explain.to_json().to_string() } else { explain.to_string() })
    }

    /// The files as they were listed.
    fn snapshot(&self) -> Snapshot {
        Snapshot(self.0.snapshot())
    }

    /// A loader, from options as JSON.
    fn loader(&self, py: Python<'_>, options: &str) -> PyResult<Loader> {
        let options = forebay::LoaderOptions::from_json(options).map_err(|e| to_python(py, &e))?;
        detached(py, |tick| forebay::Loader::open(&self.0, &options, process_budget()?, tick))
            .map(Loader::new)
    }

    /// Writes Parquet to the sink given as JSON; gives the summary.
    fn write<'py>(
        &self,
        py: Python<'py>,
        sink: &str,
        threads: &str,
    ) -> PyResult<Bound<'py, PyDict>> {
        let text = format!(r#"{{"source":{{"parquet":"x"}},"sink":{sink}}}"#);
        let Some(forebay::Sink::Parquet(sink)) = parse(py, &text)?.sink else {
            return Err(to_python(py, &forebay::Error::internal("a sink went missing")));
        };
        let threads = forebay::plan::loader::threads("write_parquet", threads);
        let threads = threads.map_err(|e| to_python(py, &e))?;
        let threads = threads.map_or_else(forebay::machine::cpus, |n| n as usize);
        let summary = detached(py, |tick| self.0.with_sink(sink)?.execute(threads, |_| tick()))?;
        let out = PyDict::new(py);
        out.set_item("rows_read", summary.rows_read)?;
        out.set_item("rows_written", summary.rows_written)?;
        out.set_item("rows_bad", summary.rows_bad)?;
        out.set_item("bytes_read", summary.bytes_read)?;
        out.set_item("bytes_written", summary.written.bytes)?;
        out.set_item("files", summary.written.files.len())?;
        out.set_item("files_replaced", summary.written.replaced)?;
        out.set_item("seconds", summary.elapsed.as_secs_f64())?;
        Ok(out)
    }
}

/// Schema, files and sizes of a dataset as JSON.
#[pyfunction]
pub fn inspect(py: Python<'_>, uri: Vec<String>) -> PyResult<String> {
    detached(py, |_| forebay::inspect(uri, StorageOptions::default(), 0))
        .map(|i| i.to_json().to_string())
}

/// The process's budget: limit, bytes in use, most bytes ever in use, open accounts.
#[pyfunction]
pub fn memory(py: Python<'_>) -> PyResult<(u64, u64, u64, usize)> {
    let b = process_budget().map_err(|e| to_python(py, &e))?;
    Ok((b.limit(), b.used(), b.peak(), b.accounts()))
}

/// A resolved dataset; see `forebay.Snapshot` for the face that users see.
#[pyclass(frozen, module = "forebay._forebay")]
pub struct Snapshot(forebay::Snapshot);

#[pymethods]
impl Snapshot {
    #[getter]
    fn id(&self, py: Python<'_>) -> String {
        py.detach(|| self.0.id().to_string())
    }

    #[getter]
    fn rows(&self) -> u64 {
        self.0.rows()
    }

    #[getter]
    fn files(&self) -> usize {
        self.0.files()
    }

    #[getter]
    fn blocks(&self) -> usize {
        self.0.blocks()
    }

    fn refresh(&self, py: Python<'_>) -> PyResult<Self> {
        detached(py, |tick| self.0.refresh(tick)).map(Self)
    }

    fn index_pages(&self, py: Python<'_>) -> PyResult<Self> {
        detached(py, |tick| self.0.index_pages(tick)).map(Self)
    }

    fn save(&self, py: Python<'_>, uri: &str) -> PyResult<()> {
        detached(py, |tick| self.0.save(uri, tick))
    }
}
