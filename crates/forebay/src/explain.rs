//! What a plan would do, before it does it.

use std::fmt;

use forebay_core::Result;
use forebay_core::text::{bytes, count};
use forebay_exec::index::candidates;
use forebay_exec::outputs::{OutputOptions, output_schema, resolve};
use forebay_exec::scan::Candidate;
use forebay_exec::{Pipeline, runtime};
use forebay_io::survey;
use forebay_plan::{MixImages, MixOp, OnError, OutputKind, Sink, Source, Step, valid_column};
use serde_json::{Value, json};

/// The source's part.
#[derive(Clone, Debug)]
pub struct ExplainSource {
    /// URIs as given.
    pub uri: Vec<String>,
    /// Files.
    pub files: usize,
    /// Rows in them.
    pub rows: u64,
    /// Columns that are read, and columns that there are.
    pub columns: (Vec<String>, usize),
    /// Row groups that are read, and row groups that there are.
    pub row_groups: (usize, usize),
    /// Bytes that are read, and bytes of the files.
    pub bytes: (u64, u64),
}

/// What a plan would do.
#[derive(Clone, Debug)]
pub struct Explain {
    /// What is read.
    pub source: ExplainSource,
    /// Each step in words, with its place.
    pub steps: Vec<(String, String)>,
    /// Output columns with their types.
    pub columns: Vec<(String, String)>,
    /// Where it goes.
    pub sink: Option<String>,
}

impl Explain {
    pub(crate) fn of(pipeline: &Pipeline) -> Result<Self> {
        let dataset = &pipeline.dataset;
        let Source::Parquet(source) = &pipeline.plan.source else {
            return Err(forebay_core::Error::internal("unknown kind of source"));
        };
        let blocks = candidates(pipeline)?;
        let group =
            |c: &Candidate| (dataset.blocks[c.block].file, dataset.blocks[c.block].row_group);
        let mut read: Vec<(usize, usize)> = blocks.iter().map(group).collect();
        read.dedup();
        let groups = dataset.files.iter().map(|f| f.metadata.num_row_groups()).sum();
        let mut steps: Vec<(usize, String, String)> = Vec::new();
        for text in pipeline.relation.steps() {
            let index = step_index(&text.place);
            let pruned =
                text.pruned_by.as_ref().map_or(String::new(), |p| format!("   [statistics: {p}]"));
            // The user's own words: what DataFusion prints of a compiled expression loses parentheses.
            let words = match pipeline.plan.steps.get(index) {
                Some(Step::Filter(expr)) => expr.clone(),
                Some(Step::WithColumn { name, expr }) => format!("{name} = {expr}"),
                _ => text.text.clone(),
            };
            steps.push((index, text.place.clone(), format!("{words}{pruned}")));
        }
        for output in &pipeline.normal.outputs {
            let Some(step) = output.step else { continue };
            match &output.kind {
                OutputKind::Column { .. } | OutputKind::Label { .. } => {}
                OutputKind::Image { spec, .. } => {
                    let ops: Vec<String> = spec.ops.iter().map(|o| o.name().to_owned()).collect();
                    steps.push((
                        step,
                        format!("steps[{step}].map_image"),
                        format!(
                            "decode {} -> {}, {}{}{}",
                            spec.column,
                            if ops.is_empty() { "as it is".to_owned() } else { ops.join(" -> ") },
                            match spec.encoding() {
                                Some(encoding) => encoding.format().to_owned(),
                                None => format!("{} {}", spec.dtype, spec.layout.name()),
                            },
                            spec.mode.map_or(String::new(), |m| format!(" {}", m.name())),
                            match spec.on_error {
                                OnError::Skip => "; bad rows are skipped".to_owned(),
                                OnError::Null => {
                                    format!(
                                        "; bad ones are {} and marked in {}",
                                        if spec.encoding().is_some() { "null" } else { "0" },
                                        valid_column(&output.name)
                                    )
                                }
                                _ => String::new(),
                            },
                        ),
                    ));
                }
                OutputKind::Stack { from, dtype } => steps.push((
                    step,
                    format!("steps[{step}].stack"),
                    format!("[{}] -> {} {dtype}[{}]", from.join(", "), output.name, from.len()),
                )),
            }
        }
        for mix in &pipeline.normal.mixes {
            let step = mix.step;
            steps.push((step, format!("steps[{step}].mix_images"), mixed(&mix.spec)));
        }
        steps.sort_by_key(|(index, _, _)| *index);
        let outputs = resolve(&pipeline.normal, &pipeline.schema(), &OutputOptions::arrow())?;
        let columns = match output_schema(&outputs, &pipeline.schema()) {
            Ok(schema) => schema
                .fields()
                .iter()
                .map(|f| (f.name().clone(), f.data_type().to_string()))
                .collect(),
            // Images without a fixed size have no Arrow type; a loader can deliver them all the same.
            Err(_) => outputs
                .iter()
                .flat_map(|o| {
                    let valid = o.valid().map(|name| (name.to_string(), "Boolean".to_owned()));
                    std::iter::once((o.name.to_string(), "tensor".to_owned())).chain(valid)
                })
                .collect(),
        };
        Ok(Self {
            source: ExplainSource {
                uri: source.snapshot.clone().map_or_else(|| source.uri.clone(), |s| vec![s]),
                files: dataset.files.len(),
                rows: dataset.rows(),
                columns: (pipeline.relation.input_columns(), dataset.schema.fields().len()),
                row_groups: (read.len(), groups),
                bytes: (
                    blocks
                        .iter()
                        .map(|c| pipeline.reader.cost_of(c.block, c.rows.as_ref()).fetch)
                        .sum(),
                    dataset.files.iter().map(|f| f.size).sum(),
                ),
            },
            steps: steps.into_iter().map(|(_, place, text)| (place, text)).collect(),
            columns,
            sink: match &pipeline.plan.sink {
                Some(Sink::Parquet(s)) => {
                    let mode = format!("{:?}", s.mode).to_lowercase();
                    let replaces = match runtime::wait(survey(s, dataset))??.replaces {
                        0 => String::new(),
                        n => format!("; replaces {} files", count(n)),
                    };
                    let level = s.compression_level;
                    Some(format!("parquet {} (mode {mode}, zstd {level}{replaces})", s.uri))
                }
                _ => None,
            },
        })
    }

    /// The same as JSON, for machines.
    pub fn to_json(&self) -> Value {
        json!({
            "source": {
                "uri": self.source.uri,
                "files": self.source.files,
                "rows": self.source.rows,
                "columns_read": self.source.columns.0,
                "columns": self.source.columns.1,
                "row_groups_read": self.source.row_groups.0,
                "row_groups": self.source.row_groups.1,
                "bytes_read": self.source.bytes.0,
                "bytes": self.source.bytes.1,
            },
            "steps": self.steps.iter()
                .map(|(place, text)| json!({"place": place, "does": text})).collect::<Vec<_>>(),
            "columns": self.columns.iter()
                .map(|(name, kind)| json!({"name": name, "type": kind})).collect::<Vec<_>>(),
            "sink": self.sink,
        })
    }
}

/// What is mixed, and what that depends on.
fn mixed(spec: &MixImages) -> String {
    let op = |(i, op): (usize, &MixOp)| {
        let weight = spec.p.as_ref().and_then(|p| p.get(i));
        let weight = weight.map_or(String::new(), |p| format!(", p {p}"));
        format!("{} (alpha {}{weight})", op.name(), op.alpha())
    };
    let ops: Vec<String> = spec.ops.iter().enumerate().map(op).collect();
    format!(
        "{} -> {}, {} within each rank's batch; pairs depend on the world size",
        ops.join(" or "),
        spec.column,
        spec.label
    )
}

fn step_index(place: &str) -> usize {
    place
        .strip_prefix("steps[")
        .and_then(|p| p.split(']').next())
        .and_then(|n| n.parse().ok())
        .unwrap_or(usize::MAX)
}

impl fmt::Display for Explain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = &self.source;
        writeln!(f, "source: parquet {}", s.uri.join(", "))?;
        writeln!(f, "  {} files, {} rows", s.files, s.rows)?;
        writeln!(
            f,
            "  columns: {} of {} ({})",
            s.columns.0.len(),
            s.columns.1,
            if s.columns.0.is_empty() { "none".to_owned() } else { s.columns.0.join(", ") }
        )?;
        writeln!(
            f,
            "  row groups: {} of {} ({} pruned by statistics)",
            s.row_groups.0,
            s.row_groups.1,
            s.row_groups.1 - s.row_groups.0
        )?;
        writeln!(f, "  bytes: {} of {}", bytes(s.bytes.0), bytes(s.bytes.1))?;
        if self.steps.is_empty() {
            writeln!(f, "steps: none")?;
        } else {
            writeln!(f, "steps:")?;
            for (place, text) in &self.steps {
                writeln!(f, "  {place}: {text}")?;
            }
        }
        writeln!(f, "columns:")?;
        for (name, kind) in &self.columns {
            writeln!(f, "  {name}: {kind}")?;
        }
        match &self.sink {
            Some(sink) => write!(f, "sink: {sink}"),
            None => write!(f, "sink: none (a loader)"),
        }
    }
}
