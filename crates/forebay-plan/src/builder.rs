//! A plan built in Rust, with the words of the Python methods.
//!
//! The builder goes through phases, so that a wrong order does not compile: how to read, then the
//! steps, then how to write.
//!
//! ```
//! use forebay_core::DType;
//! use forebay_plan::{ImageMode, ImageOp, MapImage, PlanBuilder, WriteMode};
//!
//! let plan = PlanBuilder::parquet(["s3://bucket/train/"])
//!     .columns(["image", "label", "age", "price"])
//!     .filter("label < 100")
//!     .map_image(MapImage {
//!         mode: Some(ImageMode::Rgb),
//!         ..MapImage::new("image", vec![
//!             ImageOp::random_resized_crop([224, 224]),
//!             ImageOp::random_horizontal_flip(),
//!         ])
//!     })
//!     .stack(["age", "price"], "features")
//!     .write_parquet("out/")
//!     .mode(WriteMode::Overwrite)
//!     .build()?;
//! assert_eq!(plan.steps.len(), 3);
//! # Ok::<(), forebay_core::Error>(())
//! ```

use std::marker::PhantomData;

use forebay_core::{DType, Result};

use crate::plan::{
    MapImage, MixImages, ParquetSink, ParquetSource, Plan, Sink, Source, Step, StorageOptions,
    WriteMode,
};

/// The phase in which the source is described.
#[derive(Clone, Debug)]
pub struct Reading;

/// The phase in which steps are added.
#[derive(Clone, Debug)]
pub struct Stepping;

/// The phase in which the sink is described.
#[derive(Clone, Debug)]
pub struct Writing;

/// The phases that steps can follow on.
pub trait BeforeSink {}
impl BeforeSink for Reading {}
impl BeforeSink for Stepping {}

/// Builds a [`Plan`]; begin with [`PlanBuilder::parquet`].
#[derive(Clone, Debug)]
#[must_use]
pub struct PlanBuilder<Phase> {
    source: ParquetSource,
    steps: Vec<Step>,
    sink: Option<ParquetSink>,
    phase: PhantomData<Phase>,
}

fn strings<S: Into<String>>(items: impl IntoIterator<Item = S>) -> Vec<String> {
    items.into_iter().map(Into::into).collect()
}

impl PlanBuilder<Reading> {
    /// Reads Parquet files: paths, globs, folders and `s3://` URIs, in this order.
    pub fn parquet<S: Into<String>>(uri: impl IntoIterator<Item = S>) -> Self {
        let source = ParquetSource { uri: strings(uri), ..Default::default() };
        Self { source, steps: Vec::new(), sink: None, phase: PhantomData }
    }

    /// The columns to read, in this order. Default: all.
    pub fn columns<S: Into<String>>(mut self, columns: impl IntoIterator<Item = S>) -> Self {
        self.source.columns = Some(strings(columns));
        self
    }

    /// URL of the object store. Default: `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, else AWS.
    pub fn endpoint(mut self, url: impl Into<String>) -> Self {
        self.source.storage.endpoint = Some(url.into());
        self
    }

    /// Region of the object store. Default: `AWS_REGION`, `AWS_DEFAULT_REGION`, else `us-east-1`.
    pub fn region(mut self, region: impl Into<String>) -> Self {
        self.source.storage.region = Some(region.into());
        self
    }

    /// Whether buckets are addressed by path. Default: yes with an endpoint, no without.
    pub fn path_style(mut self, yes: bool) -> Self {
        self.source.storage.path_style = Some(yes);
        self
    }

    /// Whether requests go unsigned. Default: no.
    pub fn anonymous(mut self, yes: bool) -> Self {
        self.source.storage.anonymous = Some(yes);
        self
    }
}

impl<P: BeforeSink> PlanBuilder<P> {
    /// Adds a step of any kind. Default: none.
    pub fn step(mut self, step: Step) -> PlanBuilder<Stepping> {
        self.steps.push(step);
        PlanBuilder { source: self.source, steps: self.steps, sink: self.sink, phase: PhantomData }
    }

    /// Keeps the rows for which a SQL expression is true. Default: all rows.
    pub fn filter(self, expr: impl Into<String>) -> PlanBuilder<Stepping> {
        self.step(Step::Filter(expr.into()))
    }

    /// Keeps these columns, in this order. Default: all columns.
    pub fn select<S: Into<String>>(
        self,
        columns: impl IntoIterator<Item = S>,
    ) -> PlanBuilder<Stepping> {
        self.step(Step::Select(strings(columns)))
    }

    /// Leaves these columns out. Default: none.
    pub fn drop<S: Into<String>>(
        self,
        columns: impl IntoIterator<Item = S>,
    ) -> PlanBuilder<Stepping> {
        self.step(Step::Drop(strings(columns)))
    }

    /// Renames columns, (old, new), all at once. Default: none.
    pub fn rename<A: Into<String>, B: Into<String>>(
        self,
        pairs: impl IntoIterator<Item = (A, B)>,
    ) -> PlanBuilder<Stepping> {
        self.step(Step::Rename(pairs.into_iter().map(|(a, b)| (a.into(), b.into())).collect()))
    }

    /// Adds the column of a SQL expression, or replaces a column in its place. Default: none.
    pub fn with_column(
        self,
        name: impl Into<String>,
        expr: impl Into<String>,
    ) -> PlanBuilder<Stepping> {
        self.step(Step::WithColumn { name: name.into(), expr: expr.into() })
    }

    /// Gives a row for each element of a column of lists, the other columns repeated. Default: rows as
    /// they are.
    pub fn explode(self, column: impl Into<String>) -> PlanBuilder<Stepping> {
        self.step(Step::Explode(column.into()))
    }

    /// Keeps the first rows. Default: all rows.
    pub fn limit(self, rows: u64) -> PlanBuilder<Stepping> {
        self.step(Step::Limit(rows))
    }

    /// Decodes and transforms the images of a column. Default: none.
    pub fn map_image(self, map: MapImage) -> PlanBuilder<Stepping> {
        self.step(Step::MapImage(map))
    }

    /// Mixes the images of each batch of a loader, and their labels. Default: none.
    pub fn mix_images(self, mix: MixImages) -> PlanBuilder<Stepping> {
        self.step(Step::MixImages(mix))
    }

    /// Puts numeric columns side by side into one float32 tensor. Default: none. For another
    /// element type see [`PlanBuilder::stack_as`].
    pub fn stack<S: Into<String>>(
        self,
        columns: impl IntoIterator<Item = S>,
        into: impl Into<String>,
    ) -> PlanBuilder<Stepping> {
        self.stack_as(columns, into, DType::Float32)
    }

    /// Puts numeric columns side by side into one tensor of this element type. Default: none.
    pub fn stack_as<S: Into<String>>(
        self,
        columns: impl IntoIterator<Item = S>,
        into: impl Into<String>,
        dtype: DType,
    ) -> PlanBuilder<Stepping> {
        self.step(Step::Stack { columns: strings(columns), into: into.into(), dtype })
    }

    /// Writes Parquet files into a folder or an `s3://` prefix. Default: nothing is written.
    pub fn write_parquet(self, uri: impl Into<String>) -> PlanBuilder<Writing> {
        PlanBuilder {
            source: self.source,
            steps: self.steps,
            sink: Some(ParquetSink::new(uri)),
            phase: PhantomData,
        }
    }
}

impl PlanBuilder<Writing> {
    fn sink(mut self, set: impl FnOnce(&mut ParquetSink)) -> Self {
        if let Some(sink) = &mut self.sink {
            set(sink);
        }
        self
    }

    /// What to do when the target holds committed output. Default: an error.
    pub fn mode(self, mode: WriteMode) -> Self {
        self.sink(|s| s.mode = mode)
    }

    /// zstd level, 1 to 22. Default: 3.
    pub fn compression_level(self, level: i32) -> Self {
        self.sink(|s| s.compression_level = level)
    }

    /// Target size of a row group in bytes. Default: 64 MiB.
    pub fn row_group_bytes(self, bytes: u64) -> Self {
        self.sink(|s| s.row_group_bytes = bytes)
    }

    /// Target size of a file in bytes. Default: 512 MiB.
    pub fn file_bytes(self, bytes: u64) -> Self {
        self.sink(|s| s.file_bytes = bytes)
    }

    /// How to reach the target's store. Default: as the environment says.
    pub fn storage(self, storage: StorageOptions) -> Self {
        self.sink(|s| s.storage = storage)
    }
}

impl<P> PlanBuilder<P> {
    /// Checks what can be checked without the data ([`Plan::validate`]) and gives the plan.
    pub fn build(self) -> Result<Plan> {
        let plan = Plan {
            source: Source::Parquet(self.source),
            steps: self.steps,
            sink: self.sink.map(Sink::Parquet),
        };
        plan.validate()?;
        Ok(plan)
    }
}
