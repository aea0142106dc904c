//! The words of a plan. Field names are those of the Python methods and of the job file.

mod encoding;
mod image;
mod mix;
mod rules;

use forebay_core::{DType, Layout};

use crate::bad_rows::BadRows;
pub use encoding::{Encoding, Subsampling};
pub use image::{Erase, ImageOp};
pub use mix::{MixImages, MixOp};
pub use rules::Broken;

/// The format version that this build writes, and the newest that it reads.
pub const PLAN_VERSION: u32 = 1;

/// A pipeline: a source, steps in order, and for batch jobs a sink.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What is read.
    pub source: Source,
    /// What is done to the rows, in order.
    pub steps: Vec<Step>,
    /// Where a batch job writes. A loader's plan has none.
    pub sink: Option<Sink>,
}

/// What is read.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Source {
    /// Parquet files.
    Parquet(ParquetSource),
}

/// Parquet files by paths, globs, folders or `s3://` URIs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParquetSource {
    /// Paths, globs, folders and URIs, in the order given. A path listed twice is read twice.
    pub uri: Vec<String>,
    /// A saved snapshot, in place of `uri`: nothing is listed, and no footer is read.
    pub snapshot: Option<String>,
    /// Columns to read; all of them when absent.
    pub columns: Option<Vec<String>>,
    /// How to reach the store.
    pub storage: StorageOptions,
}

/// How to reach an object store. Credentials are never part of a plan: they come from the usual
/// AWS variables or from the machine's role.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StorageOptions {
    /// Endpoint URL; default `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, else AWS itself.
    pub endpoint: Option<String>,
    /// Region; default `AWS_REGION`, `AWS_DEFAULT_REGION`, else `us-east-1`.
    pub region: Option<String>,
    /// Address buckets by path (`endpoint/bucket/key`); default: yes with an endpoint, no without.
    pub path_style: Option<bool>,
    /// Do not sign requests. Default: no.
    pub anonymous: Option<bool>,
}

/// One step. The relational ones (`filter` to `limit`) work on columns; some take SQL expressions.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Step {
    /// Keep the rows for which the SQL expression is true (not false, not null).
    Filter(String),
    /// Keep these columns, in this order.
    Select(Vec<String>),
    /// Leave these columns out.
    Drop(Vec<String>),
    /// Rename columns: (old, new), all at once.
    Rename(Vec<(String, String)>),
    /// Add a column, or replace one in its place.
    WithColumn {
        /// The column's name.
        name: String,
        /// SQL expression over the columns so far.
        expr: String,
    },
    /// Give a row for each element of a column of lists, the other columns repeated. A row whose
    /// list is null or empty gives none.
    Explode(String),
    /// Keep the first rows.
    Limit(u64),
    /// Decode images and transform them into tensors, in place of the encoded column.
    MapImage(MapImage),
    /// Put numeric columns side by side into one dense `[batch, n]` tensor.
    Stack {
        /// The columns, in order. They are replaced by the new one.
        columns: Vec<String>,
        /// The name of the new column.
        into: String,
        /// Its element type. Default: float32.
        dtype: DType,
    },
    /// Mix the images of each batch of a loader with each other, and their labels.
    MixImages(MixImages),
}

impl Step {
    /// The word for this step in job files.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Filter(_) => "filter",
            Self::Select(_) => "select",
            Self::Drop(_) => "drop",
            Self::Rename(_) => "rename",
            Self::WithColumn { .. } => "with_column",
            Self::Explode(_) => "explode",
            Self::Limit(_) => "limit",
            Self::MapImage(_) => "map_image",
            Self::Stack { .. } => "stack",
            Self::MixImages(_) => "mix_images",
        }
    }
}

/// Decode and transform the images of one column.
#[derive(Clone, Debug, PartialEq)]
pub struct MapImage {
    /// The column of encoded images (binary).
    pub column: String,
    /// The operators, in order.
    pub ops: Vec<ImageOp>,
    /// Convert to this mode; absent keeps the file's own mode, and mixed modes are then an error, but
    /// with [`ImageOp::EncodeImage`].
    pub mode: Option<ImageMode>,
    /// Element type of the tensor. Default: uint8 with [`ImageOp::EncodeImage`], that of
    /// [`ImageOp::ToDtype`] among the operators, else float32. Without the latter, pixels of 0–255 are
    /// scaled to 0–1 for float types.
    pub dtype: DType,
    /// Order of the axes. Default: CHW.
    pub layout: Layout,
    /// Speed against exactness of decoding and resizing. Default: fast.
    pub quality: Quality,
    /// What to do with a row whose image is bad: null, not decodable, or of no use to an operator.
    /// Default: raise. The others need a `mode`, but with [`ImageOp::EncodeImage`].
    pub on_error: OnError,
}

impl MapImage {
    /// The defaults for a column.
    pub fn new(column: impl Into<String>, ops: Vec<ImageOp>) -> Self {
        let encoded = ops.iter().any(|op| op.encoding().is_some()).then_some(DType::UInt8);
        let asked = encoded.or_else(|| {
            ops.iter().find_map(|op| match op {
                ImageOp::ToDtype { dtype, .. } => Some(*dtype),
                _ => None,
            })
        });
        Self {
            column: column.into(),
            ops,
            mode: None,
            dtype: asked.unwrap_or(DType::Float32),
            layout: Layout::Chw,
            quality: Quality::Fast,
            on_error: OnError::Raise,
        }
    }
}

/// Pixel modes, by Pillow's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageMode {
    /// Three channels.
    Rgb,
    /// One channel of luminance.
    L,
    /// Three channels and opacity.
    Rgba,
}

impl ImageMode {
    /// Pillow's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rgb => "RGB",
            Self::L => "L",
            Self::Rgba => "RGBA",
        }
    }

    /// Number of channels.
    pub fn channels(self) -> usize {
        match self {
            Self::Rgb => 3,
            Self::L => 1,
            Self::Rgba => 4,
        }
    }
}

/// Speed against exactness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quality {
    /// The fast path.
    #[default]
    Fast,
    /// Decode in full and resize as torchvision does on the same pixels.
    Exact,
}

/// What to do with a bad row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnError {
    /// Stop with an error that names file, row group, row and column.
    #[default]
    Raise,
    /// A job leaves the row out; a loader delivers the next readable row of its lane in its place.
    Skip,
    /// Zeros in place of the image, or a null in place of its bytes, and false in the column
    /// [`valid_column`].
    Null,
}

/// The boolean column that stands behind an image column with [`OnError::Null`].
pub fn valid_column(image: &str) -> String {
    format!("{image}_valid")
}

/// How pixels between pixels are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interpolation {
    /// The nearest pixel.
    Nearest,
    /// Linear in both axes. torchvision's default.
    #[default]
    Bilinear,
    /// Cubic in both axes.
    Bicubic,
}

/// What lies outside the picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PaddingMode {
    /// One value.
    #[default]
    Constant,
    /// The border pixel repeated.
    Edge,
    /// Mirrored, without the border pixel.
    Reflect,
    /// Mirrored, with the border pixel.
    Symmetric,
}

/// Where a batch job writes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Sink {
    /// Parquet files.
    Parquet(ParquetSink),
}

/// A folder or prefix of Parquet files with one manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct ParquetSink {
    /// Folder or `s3://` prefix.
    pub uri: String,
    /// What to do when the target holds committed output. Default: error.
    pub mode: WriteMode,
    /// zstd level, 1 to 22. Default: 3.
    pub compression_level: i32,
    /// Target size of a row group in bytes, encoded. Default: 64 MiB.
    pub row_group_bytes: u64,
    /// Target size of a file in bytes. Default: 512 MiB.
    pub file_bytes: u64,
    /// How to reach the store.
    pub storage: StorageOptions,
    /// How many rows may be bad, and where they are listed.
    pub bad_rows: BadRows,
}

impl ParquetSink {
    /// The defaults for a target.
    pub fn new(uri: impl Into<String>) -> Self {
        Self {
            uri: uri.into(),
            mode: WriteMode::Error,
            compression_level: 3,
            row_group_bytes: 64 << 20,
            file_bytes: 512 << 20,
            storage: StorageOptions::default(),
            bad_rows: BadRows::default(),
        }
    }
}

/// What to do when a write target already holds committed output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteMode {
    /// An error.
    #[default]
    Error,
    /// Replace it.
    Overwrite,
    /// Add to it.
    Append,
}
