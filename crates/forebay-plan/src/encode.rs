//! From a [`Plan`] to its canonical form: every key written out, in a fixed order, with `version`.

use crate::hash::PlanHash;
use crate::node::{Node, Value};
use crate::plan::{
    Encoding, Erase, ImageOp, MapImage, MixImages, MixOp, PLAN_VERSION, ParquetSink, ParquetSource,
    Plan, Sink, Source, Step, StorageOptions,
};
use crate::words::Word;

/// The version of what [`Plan::hash`] covers and how. It is part of what is hashed, so a change of
/// either gives other hashes rather than wrong agreement.
const HASH_VERSION: u64 = 1;

type Entries = Vec<(String, Node)>;

fn text(s: &str) -> Node {
    Node::from(s)
}

fn number(n: impl Into<i128>) -> Node {
    Value::Int(n.into()).into()
}

fn texts(items: &[String]) -> Node {
    Node::seq(items.iter().map(|s| text(s)))
}

fn one(key: &str, node: Node) -> Node {
    Node::map([(key, node)])
}

fn put(entries: &mut Entries, key: &str, node: Node) {
    entries.push((key.to_owned(), node));
}

fn put_some(entries: &mut Entries, key: &str, node: Option<Node>) {
    entries.extend(node.map(|n| (key.to_owned(), n)));
}

impl Plan {
    /// The canonical tree: the long form of everything, with `version`.
    pub fn to_node(&self) -> Node {
        let mut out = Entries::new();
        put(&mut out, "version", number(PLAN_VERSION));
        let Source::Parquet(source) = &self.source;
        put(&mut out, "source", one("parquet", source_node(source)));
        put(&mut out, "steps", Node::seq(self.steps.iter().map(Step::to_node)));
        if let Some(Sink::Parquet(sink)) = &self.sink {
            put(&mut out, "sink", one("parquet", sink_node(sink)));
        }
        Node::map(out)
    }

    /// The canonical JSON on one line. [`Plan::from_json`] gives the same plan back.
    pub fn to_json(&self) -> String {
        self.to_node().to_json()
    }

    /// A hash of what decides which samples come out: the columns read and the steps. URIs, how the
    /// store is reached and the sink are left out, so that a copy of the dataset elsewhere, or
    /// another target, keeps checkpoints valid. (The order of samples has its own numbers in a
    /// checkpoint: seed, shuffle mode, lanes and window.)
    ///
    /// It is the 128-bit FNV-1a of the canonical JSON
    /// `{"plan_hash":1,"columns":[…] or null,"steps":[…]}`, the same on every machine and in every
    /// version of Forebay.
    pub fn hash(&self) -> PlanHash {
        let Source::Parquet(source) = &self.source;
        let columns = source.columns.as_deref().map_or(Value::Null.into(), texts);
        let node = Node::map([
            ("plan_hash", number(HASH_VERSION)),
            ("columns", columns),
            ("steps", Node::seq(self.steps.iter().map(Step::to_node))),
        ]);
        PlanHash::of(node.to_json().as_bytes())
    }
}

fn source_node(source: &ParquetSource) -> Node {
    let mut out = Entries::new();
    match &source.snapshot {
        Some(snapshot) => put(&mut out, "snapshot", text(snapshot)),
        None => put(&mut out, "uri", texts(&source.uri)),
    }
    put_some(&mut out, "columns", source.columns.as_deref().map(texts));
    put_storage(&mut out, &source.storage);
    Node::map(out)
}

fn sink_node(sink: &ParquetSink) -> Node {
    let mut out = Entries::new();
    put(&mut out, "uri", text(&sink.uri));
    put(&mut out, "mode", text(sink.mode.word()));
    put(&mut out, "compression_level", number(sink.compression_level));
    put(&mut out, "row_group_bytes", number(sink.row_group_bytes));
    put(&mut out, "file_bytes", number(sink.file_bytes));
    put_storage(&mut out, &sink.storage);
    out.extend(sink.bad_rows.entries());
    Node::map(out)
}

fn put_storage(out: &mut Entries, storage: &StorageOptions) {
    put_some(out, "endpoint", storage.endpoint.as_deref().map(text));
    put_some(out, "region", storage.region.as_deref().map(text));
    put_some(out, "path_style", storage.path_style.map(Node::from));
    put_some(out, "anonymous", storage.anonymous.map(Node::from));
}

impl Step {
    /// The canonical tree of one step, `{word: value}`.
    pub fn to_node(&self) -> Node {
        let value = match self {
            Self::Filter(expr) => text(expr),
            Self::Explode(column) => text(column),
            Self::Select(names) | Self::Drop(names) => texts(names),
            Self::Rename(pairs) => {
                Node::map(pairs.iter().map(|(old, new)| (old.as_str(), text(new))))
            }
            Self::WithColumn { name, expr } => {
                Node::map([("name", text(name)), ("expr", text(expr))])
            }
            Self::Limit(n) => number(*n),
            Self::MapImage(map) => map_image_node(map),
            Self::MixImages(mix) => mix_images_node(mix),
            Self::Stack { columns, into, dtype } => Node::map([
                ("columns", texts(columns)),
                ("into", text(into)),
                ("dtype", text(dtype.name())),
            ]),
        };
        one(self.name(), value)
    }

    /// The canonical JSON of one step, which [`Step::from_json`] reads.
    pub fn to_json(&self) -> String {
        self.to_node().to_json()
    }
}

fn map_image_node(map: &MapImage) -> Node {
    let mut out = Entries::new();
    put(&mut out, "column", text(&map.column));
    put(&mut out, "ops", Node::seq(map.ops.iter().map(op_node)));
    put_some(&mut out, "mode", map.mode.map(|m| text(m.word())));
    put(&mut out, "dtype", text(map.dtype.name()));
    put(&mut out, "layout", text(map.layout.name()));
    put(&mut out, "quality", text(map.quality.word()));
    put(&mut out, "on_error", text(map.on_error.word()));
    Node::map(out)
}

fn mix_images_node(mix: &MixImages) -> Node {
    let mut out = Entries::new();
    put(&mut out, "column", text(&mix.column));
    put(&mut out, "label", text(&mix.label));
    put(&mut out, "ops", Node::seq(mix.ops.iter().map(mix_op_node)));
    put_some(&mut out, "p", mix.p.as_ref().map(|p| Node::seq(p.iter().copied())));
    Node::map(out)
}

fn mix_op_node(op: &MixOp) -> Node {
    let mut out = Entries::new();
    put(&mut out, "alpha", op.alpha().into());
    put_some(&mut out, "num_classes", op.num_classes().map(number));
    one(op.name(), Node::map(out))
}

fn pixels(size: &[u32]) -> Node {
    match size {
        [one] => number(*one),
        many => Node::seq(many.iter().map(|s| number(*s))),
    }
}

/// One number stays one number.
fn fill_node(fill: &[u8]) -> Node {
    match fill {
        [one] => number(*one),
        many => Node::seq(many.iter().map(|v| number(*v))),
    }
}

fn op_node(op: &ImageOp) -> Node {
    let mut out = Entries::new();
    match op {
        ImageOp::Resize { size, interpolation, max_size, antialias } => {
            put(&mut out, "size", pixels(size));
            put(&mut out, "interpolation", text(interpolation.word()));
            put_some(&mut out, "max_size", max_size.map(number));
            put(&mut out, "antialias", (*antialias).into());
        }
        ImageOp::CenterCrop { size } => put(&mut out, "size", pixels(size)),
        ImageOp::RandomCrop { size, padding, pad_if_needed, fill, padding_mode } => {
            put(&mut out, "size", pixels(size));
            put_some(&mut out, "padding", padding.as_ref().map(|p| pixels(p)));
            put(&mut out, "pad_if_needed", (*pad_if_needed).into());
            put(&mut out, "fill", number(*fill));
            put(&mut out, "padding_mode", text(padding_mode.word()));
        }
        ImageOp::RandomResizedCrop { size, scale, ratio, interpolation, antialias } => {
            put(&mut out, "size", pixels(size));
            put(&mut out, "scale", Node::seq(*scale));
            put(&mut out, "ratio", Node::seq(*ratio));
            put(&mut out, "interpolation", text(interpolation.word()));
            put(&mut out, "antialias", (*antialias).into());
        }
        ImageOp::RandomHorizontalFlip { p }
        | ImageOp::RandomVerticalFlip { p }
        | ImageOp::RandomGrayscale { p }
        | ImageOp::RandomInvert { p }
        | ImageOp::RandomAutocontrast { p }
        | ImageOp::RandomEqualize { p } => put(&mut out, "p", (*p).into()),
        ImageOp::RandomPosterize { bits, p } => {
            put(&mut out, "bits", number(*bits));
            put(&mut out, "p", (*p).into());
        }
        ImageOp::RandomSolarize { threshold, p } => {
            put(&mut out, "threshold", (*threshold).into());
            put(&mut out, "p", (*p).into());
        }
        ImageOp::RandomAdjustSharpness { sharpness_factor, p } => {
            put(&mut out, "sharpness_factor", (*sharpness_factor).into());
            put(&mut out, "p", (*p).into());
        }
        ImageOp::RandomAffine { degrees, translate, scale, shear, interpolation, fill, center } => {
            put(&mut out, "degrees", Node::seq(*degrees));
            put_some(&mut out, "translate", translate.map(Node::seq));
            put_some(&mut out, "scale", scale.map(Node::seq));
            put_some(&mut out, "shear", shear.map(Node::seq));
            put(&mut out, "interpolation", text(interpolation.word()));
            put(&mut out, "fill", fill_node(fill));
            put_some(&mut out, "center", center.map(Node::seq));
        }
        ImageOp::Pad { padding, fill, padding_mode } => {
            put(&mut out, "padding", pixels(padding));
            put(&mut out, "fill", fill_node(fill));
            put(&mut out, "padding_mode", text(padding_mode.word()));
        }
        ImageOp::Grayscale { num_output_channels } => {
            put(&mut out, "num_output_channels", number(*num_output_channels));
        }
        ImageOp::ColorJitter { brightness, contrast, saturation, hue } => {
            put_some(&mut out, "brightness", brightness.map(Node::seq));
            put_some(&mut out, "contrast", contrast.map(Node::seq));
            put_some(&mut out, "saturation", saturation.map(Node::seq));
            put_some(&mut out, "hue", hue.map(Node::seq));
        }
        ImageOp::RandomRotation { degrees, interpolation, expand, center, fill } => {
            put(&mut out, "degrees", Node::seq(*degrees));
            put(&mut out, "interpolation", text(interpolation.word()));
            put(&mut out, "expand", (*expand).into());
            put_some(&mut out, "center", center.map(Node::seq));
            put(&mut out, "fill", fill_node(fill));
        }
        ImageOp::RandomErasing { p, scale, ratio, value } => {
            put(&mut out, "p", (*p).into());
            put(&mut out, "scale", Node::seq(*scale));
            put(&mut out, "ratio", Node::seq(*ratio));
            let value = match value {
                Erase::Random => text("random"),
                Erase::Value(values) => Node::seq(values.iter().copied()),
            };
            put(&mut out, "value", value);
        }
        ImageOp::GaussianBlur { kernel_size, sigma } => {
            put(&mut out, "kernel_size", pixels(kernel_size));
            put(&mut out, "sigma", Node::seq(*sigma));
        }
        ImageOp::TrivialAugmentWide { num_magnitude_bins, interpolation, fill } => {
            put(&mut out, "num_magnitude_bins", number(*num_magnitude_bins));
            put(&mut out, "interpolation", text(interpolation.word()));
            put_some(&mut out, "fill", fill.as_deref().map(fill_node));
        }
        ImageOp::RandAugment { num_ops, magnitude, num_magnitude_bins, interpolation, fill } => {
            put(&mut out, "num_ops", number(*num_ops));
            put(&mut out, "magnitude", number(*magnitude));
            put(&mut out, "num_magnitude_bins", number(*num_magnitude_bins));
            put(&mut out, "interpolation", text(interpolation.word()));
            put_some(&mut out, "fill", fill.as_deref().map(fill_node));
        }
        ImageOp::ToDtype { dtype, scale } => {
            put(&mut out, "dtype", text(dtype.name()));
            put(&mut out, "scale", (*scale).into());
        }
        ImageOp::EncodeImage { encoding } => {
            put(&mut out, "format", text(encoding.format()));
            match *encoding {
                Encoding::Jpeg { quality, subsampling, progressive, optimize } => {
                    put(&mut out, "quality", number(quality));
                    put(&mut out, "subsampling", text(subsampling.word()));
                    put(&mut out, "progressive", progressive.into());
                    put(&mut out, "optimize", optimize.into());
                }
                Encoding::Png { compress_level } => {
                    put(&mut out, "compress_level", number(compress_level));
                }
                Encoding::WebP { quality, lossless, method, exact } => {
                    put(&mut out, "quality", number(quality));
                    put(&mut out, "lossless", lossless.into());
                    put(&mut out, "method", number(method));
                    put(&mut out, "exact", exact.into());
                }
            }
        }
        ImageOp::Normalize { mean, std } => {
            put(&mut out, "mean", Node::seq(mean.iter().copied()));
            put(&mut out, "std", Node::seq(std.iter().copied()));
        }
    }
    one(op.name(), Node::map(out))
}
