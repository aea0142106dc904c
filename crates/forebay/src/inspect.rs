//! What is in a dataset, from its footers, and a few of its rows.

use arrow::array::RecordBatch;
use forebay_core::Result;
use forebay_plan::{ParquetSource, StorageOptions};
use serde_json::{Value, json};

use crate::dataset::Dataset;

/// One file.
#[derive(Clone, Debug)]
pub struct InspectFile {
    /// As the user would write it.
    pub uri: String,
    /// Bytes.
    pub size: u64,
    /// Rows.
    pub rows: u64,
    /// Rows and compressed bytes of each row group.
    pub row_groups: Vec<(u64, u64)>,
}

/// What is in a dataset.
#[derive(Clone, Debug)]
pub struct Inspect {
    /// Column name, type, and whether it may be null.
    pub columns: Vec<(String, String, bool)>,
    /// The files in order.
    pub files: Vec<InspectFile>,
    /// The first rows.
    pub head: Vec<RecordBatch>,
}

/// Reads the footers of a dataset, and its first `rows` rows.
pub fn inspect(uri: Vec<String>, storage: StorageOptions, rows: u64) -> Result<Inspect> {
    let dataset = Dataset::open(ParquetSource { uri, storage, ..ParquetSource::default() })?;
    let source = &dataset.pipeline().dataset;
    let columns = source
        .schema
        .fields()
        .iter()
        .map(|f| (f.name().clone(), f.data_type().to_string(), f.is_nullable()))
        .collect();
    let files = source
        .files
        .iter()
        .map(|file| InspectFile {
            uri: file.uri.to_string(),
            size: file.size,
            rows: file.rows,
            row_groups: file
                .metadata
                .row_groups()
                .iter()
                .map(|g| (g.num_rows().unsigned_abs(), g.compressed_size().unsigned_abs()))
                .collect(),
        })
        .collect();
    let mut head = Vec::new();
    if rows > 0 {
        let mut run = dataset.limit(rows)?.run()?;
        while let Some(batch) = run.next(|_| Ok(())) {
            head.push(batch?);
        }
    }
    Ok(Inspect { columns, files, head })
}

impl Inspect {
    /// Rows of all files.
    pub fn rows(&self) -> u64 {
        self.files.iter().map(|f| f.rows).sum()
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|f| f.size).sum()
    }

    /// Row groups of all files.
    pub fn row_groups(&self) -> usize {
        self.files.iter().map(|f| f.row_groups.len()).sum()
    }

    /// The same as JSON, without the rows.
    pub fn to_json(&self) -> Value {
        json!({
            "rows": self.rows(),
            "bytes": self.bytes(),
            "row_groups": self.row_groups(),
            "columns": self.columns.iter()
                .map(|(name, kind, nullable)| {
                    json!({"name": name, "type": kind, "nullable": *nullable})
                })
                .collect::<Vec<_>>(),
            "files": self.files.iter().map(|f| json!({
                "uri": f.uri,
                "bytes": f.size,
                "rows": f.rows,
                "row_groups": f.row_groups.iter()
                    .map(|(rows, bytes)| json!({"rows": rows, "bytes": bytes})).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
        })
    }
}
