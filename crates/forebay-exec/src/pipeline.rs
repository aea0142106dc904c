//! A plan, bound to the dataset that it reads: everything that is decided before a row moves.

use std::sync::Arc;

use arrow_schema::{DataType, SchemaRef};
use forebay_core::{Error, Result};
use forebay_io::{BlockReader, Dataset};
use forebay_plan::columns::{ColumnKind, Normalized, OutputKind, normalize};
use forebay_plan::{Plan, Source};
use forebay_sql::{Relation, Split};

/// The bound plan.
#[derive(Clone)]
pub struct Pipeline {
    /// The plan as given.
    pub plan: Arc<Plan>,
    /// The listed files and their footers.
    pub dataset: Arc<Dataset>,
    /// Outputs in order, and the relational steps that feed them.
    pub normal: Arc<Normalized>,
    /// The relational steps, compiled against what the reader gives.
    pub relation: Relation,
    /// The relation taken apart, where it multiplies rows.
    pub split: Option<Arc<Split>>,
    /// Reads the columns that the relation needs.
    pub reader: BlockReader,
    /// Columns that are read as views.
    views: Arc<[String]>,
}

impl Pipeline {
    /// Lists the source, reads its footers, and checks every name, type and expression.
    pub async fn open(plan: &Plan) -> Result<Self> {
        let Source::Parquet(source) = &plan.source else {
            return Err(Error::internal("unknown kind of source"));
        };
        let dataset = Arc::new(Dataset::open(source).await?);
        Self::bind(plan, dataset)
    }

    /// Binds a plan to a dataset that is open already.
    pub fn bind(plan: &Plan, dataset: Arc<Dataset>) -> Result<Self> {
        let Source::Parquet(source) = &plan.source else {
            return Err(Error::internal("unknown kind of source"));
        };
        let columns: Vec<String> = match &source.columns {
            Some(columns) => columns.clone(),
            None => dataset.schema.fields().iter().map(|f| f.name().clone()).collect(),
        };
        let all = BlockReader::new(Arc::clone(&dataset), &columns).map_err(|e| {
            let named =
                e.location().column.as_deref().and_then(|c| columns.iter().position(|n| n == c));
            match named {
                Some(i) => e.at_place(format!("source.parquet.columns[{i}]")),
                None => e,
            }
        })?;
        let kinds: Vec<(String, ColumnKind)> = all
            .schema()
            .fields()
            .iter()
            .map(|f| (f.name().clone(), column_kind(f.data_type())))
            .collect();
        let normal = normalize(plan, &kinds)?;
        let relation = Relation::compile(&all.schema(), &normal.relational)
            .map_err(|e| explain_absence(e, plan, &normal))?;
        let needed = relation.input_columns();
        let views = image_columns(&normal, &relation, &all.schema());
        let reader = BlockReader::new(Arc::clone(&dataset), &needed)?.with_views(&views);
        // The reader gives some columns as views: compile against the types that really come. All
        // columns stay known, for a step may name one that nothing needs (`drop`); the relation
        // finds its columns by name and asks the reader for no more than `needed`.
        let relation = Relation::compile(&all.with_views(&views).schema(), &normal.relational)?;
        Ok(Self {
            plan: Arc::new(plan.clone()),
            dataset,
            normal: Arc::new(normal),
            split: relation.split().map(Arc::new),
            relation,
            reader,
            views: views.into(),
        })
    }

    /// A reader of some of the columns, with the types that the relation was compiled for.
    pub fn reader_of(&self, columns: &[String]) -> Result<BlockReader> {
        Ok(BlockReader::new(Arc::clone(&self.dataset), columns)?.with_views(&self.views))
    }

    /// What happens to rows of the source before any is multiplied: which of them there are, a loader
    /// knows before the first batch.
    pub fn rows(&self) -> &Relation {
        self.split.as_ref().map_or(&self.relation, |split| &split.rows)
    }

    /// The schema of the relational result.
    pub fn schema(&self) -> SchemaRef {
        self.relation.schema()
    }
}

/// Tells why an expression cannot use a column, where an earlier step is the reason: "renamed in
/// steps[1]" helps more than the nearest name.
fn explain_absence(error: Error, plan: &Plan, normal: &Normalized) -> Error {
    let step = normal.relational.iter().map(|(index, _)| *index).find(|index| {
        error.place().is_some_and(|place| place.starts_with(&format!("steps[{index}].")))
    });
    let column = error.location().column.as_deref();
    match step.zip(column).and_then(|(step, name)| normal.why_not(plan, step, name)) {
        Some(why) => error.with_better_hint(why),
        None => error,
    }
}

/// Source columns whose values are only ever decoded as images: read as views, so that an image
/// stays where its page was decompressed until it is decoded.
fn image_columns(normal: &Normalized, relation: &Relation, source: &SchemaRef) -> Vec<String> {
    let image = |name: &str| {
        normal
            .outputs
            .iter()
            .any(|o| matches!(&o.kind, OutputKind::Image { from, .. } if from == name))
    };
    let column = |name: &str| {
        normal.outputs.iter().any(|o| match &o.kind {
            OutputKind::Column { from } => from == name,
            OutputKind::Stack { from, .. } => from.iter().any(|f| f == name),
            OutputKind::Label { from, .. } => from == name,
            OutputKind::Image { .. } => false,
        })
    };
    source
        .fields()
        .iter()
        .filter(|f| matches!(f.data_type(), DataType::Binary | DataType::LargeBinary))
        .map(|f| f.name().clone())
        .filter(|name| image(name) && !column(name) && relation.schema().index_of(name).is_ok())
        .collect()
}

/// The kind of a column for the plan's checks.
pub fn column_kind(data_type: &DataType) -> ColumnKind {
    match data_type {
        DataType::Boolean => ColumnKind::Bool,
        t if t.is_numeric() => ColumnKind::Number,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => ColumnKind::String,
        DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_) => ColumnKind::Binary,
        DataType::List(_) | DataType::LargeList(_) => ColumnKind::List,
        DataType::FixedSizeList(_, _) => ColumnKind::FixedList,
        DataType::Dictionary(_, values) => column_kind(values),
        _ => ColumnKind::Other,
    }
}
