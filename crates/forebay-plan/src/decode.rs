//! From the tree of a YAML job file or of JSON to a [`Plan`]. The two are one language.
//!
//! The readers are written by hand, because an error must say where (`job.yaml:7:5:
//! steps[1].map_image`), what was found, what is wanted and which right word is nearest; derived
//! readers say none of it for nested choices. What one value must be is checked here; what values
//! must be to each other is checked by [`crate::validate`], for plans from the builder too.

pub(crate) mod cursor;
pub(crate) mod image;
mod mix;

use forebay_core::{DType, Error, ErrorKind, Result};

use crate::bad_rows::BadRows;
use crate::limits;
use crate::node::Node;
use crate::path::{Origin, Path};
use crate::plan::{
    PLAN_VERSION, ParquetSink, ParquetSource, Plan, Sink, Source, Step, StorageOptions,
};
use crate::words::Word;
use cursor::{Cursor, Fields};

const PLAN_KEYS: &[&str] = &["version", "source", "steps", "sink"];
const FORMATS: &[&str] = &["parquet"];
/// Sources and sinks that the design has and this version does not.
const LATER_FORMATS: &[&str] = &["arrow", "csv", "json", "webdataset", "images"];
const SOURCE_KEYS: &[&str] =
    &["uri", "snapshot", "columns", "endpoint", "region", "path_style", "anonymous"];
const SINK_KEYS: &[&str] = &[
    "uri",
    "mode",
    "compression_level",
    "row_group_bytes",
    "file_bytes",
    "endpoint",
    "region",
    "path_style",
    "anonymous",
    "max_bad_rows",
    "max_bad_share",
    "bad_rows_to",
];
const STEPS: &[&str] = &[
    "filter",
    "select",
    "drop",
    "rename",
    "with_column",
    "explode",
    "limit",
    "map_image",
    "stack",
    "mix_images",
];

impl Plan {
    /// Reads a YAML job file and validates it. `origin` is the file's name as the user gave it; it
    /// begins the place of every error.
    ///
    /// ```
    /// # use forebay_plan::{Plan, Step};
    /// let plan = Plan::from_yaml(
    ///     "source: { parquet: data/*.parquet }\nsteps:\n  - filter: label < 100\n",
    ///     "job.yaml",
    /// )?;
    /// assert_eq!(plan.steps, [Step::Filter("label < 100".into())]);
    ///
    /// let error = Plan::from_yaml("source: { parquet: x }\nsteps:\n  - fliter: a\n", "job.yaml").unwrap_err();
    /// assert_eq!(error.to_string(), "job.yaml:3:5: steps[0]: unknown step \"fliter\"");
    /// assert_eq!(error.hint(), Some("did you mean \"filter\"?"));
    /// # Ok::<(), forebay_core::Error>(())
    /// ```
    pub fn from_yaml(text: &str, origin: &str) -> Result<Self> {
        Self::decode(&Node::from_yaml(text, origin)?, Origin::File(origin))
    }

    /// Reads the JSON of [`Plan::to_json`], or the words of a job file written as JSON, and
    /// validates it.
    ///
    /// ```
    /// # use forebay_plan::Plan;
    /// let plan = Plan::from_json(r#"{"source": {"parquet": "data/"}, "steps": [{"limit": 10}]}"#)?;
    /// assert_eq!(Plan::from_json(&plan.to_json())?, plan);
    /// # Ok::<(), forebay_core::Error>(())
    /// ```
    pub fn from_json(text: &str) -> Result<Self> {
        Self::decode(&Node::from_json(text)?, Origin::Plan)
    }

    pub(crate) fn decode(node: &Node, origin: Origin<'_>) -> Result<Self> {
        let plan = read_plan(&Cursor::root(node, origin))?;
        plan.validate_at(&|path: &Path| origin.place(path, node.locate(path), None))?;
        Ok(plan)
    }
}

impl Step {
    /// Reads one step as it stands in a plan's JSON, e.g. `{"limit": 10}`, and checks it on its
    /// own. Errors name the argument of the method of the same name: `stack(dtype="flaot32")`.
    pub fn from_json(text: &str) -> Result<Self> {
        let node = Node::from_json(text)?;
        let step = read_step(&Cursor::root(&node, Origin::Method))?;
        step.validate_at(&Path::root().key(step.name()), &|path: &Path| {
            Origin::Method.place(path, None, None)
        })?;
        Ok(step)
    }
}

fn read_plan(c: &Cursor<'_>) -> Result<Plan> {
    let fields = c.fields(PLAN_KEYS, "source: { parquet: data/ }")?;
    if let Some(c) = fields.get("version") {
        let version = c.whole(1..=u64::MAX, "1")?;
        if version > u64::from(PLAN_VERSION) {
            return Err(c.unsupported(
                format!("the plan has format version {version}, and this Forebay reads up to {PLAN_VERSION}"),
                "upgrade Forebay, or write the plan with the older version",
            ));
        }
    }
    let source = read_source(&fields.need("source", "{ parquet: data/ }")?)?;
    let steps = match fields.get("steps") {
        None => Vec::new(),
        Some(c) => match c.items() {
            Some(items) => items.iter().map(read_step).collect::<Result<_>>()?,
            None => {
                return Err(c.error(
                    format!("expected a list of steps, found {}", c.node.describe()),
                    "begin each step with '- ', for example - filter: label < 100",
                ));
            }
        },
    };
    let sink = fields.get("sink").map(|c| read_sink(&c)).transpose()?;
    Ok(Plan { source, steps, sink })
}

/// The one choice of a source or a sink.
fn read_format<'n>(c: &Cursor<'n>, what: &str, example: &str) -> Result<Cursor<'n>> {
    let (word, value, place) = c.tagged(what, FORMATS, LATER_FORMATS, example)?;
    value.ok_or_else(|| {
        let uri = if what == "a sink" { "out/" } else { "data/*.parquet" };
        place.error(format!("{word} needs a uri"), format!("for example {word}: {uri}"))
    })
}

fn read_source(c: &Cursor<'_>) -> Result<Source> {
    let c = read_format(c, "a source", "{ parquet: data/ }")?;
    let uris = |c: &Cursor<'_>| {
        c.texts("a path, glob, folder or URI, or a list of them", "data/*.parquet")
    };
    if !c.is_map() {
        return Ok(Source::Parquet(ParquetSource { uri: uris(&c)?, ..Default::default() }));
    }
    let fields = c.fields(SOURCE_KEYS, "parquet: data/*.parquet")?;
    let snapshot = fields.get("snapshot");
    if let (Some(c), Some(_)) = (&snapshot, fields.get("uri")) {
        return Err(c.error(
            "uri and snapshot are both given",
            "a snapshot says which files are read; leave one of them out",
        ));
    }
    let uri = match &snapshot {
        Some(_) => Vec::new(),
        None => uris(&fields.need("uri", "data/*.parquet")?)?,
    };
    Ok(Source::Parquet(ParquetSource {
        uri,
        snapshot: snapshot
            .map(|c| c.text("a path or URI", "snap.json").map(str::to_owned))
            .transpose()?,
        columns: fields.get("columns").map(|c| read_names(&c)).transpose()?,
        storage: read_storage(&fields)?,
    }))
}

fn read_sink(c: &Cursor<'_>) -> Result<Sink> {
    let c = read_format(c, "a sink", "{ parquet: out/ }")?;
    let uri =
        |c: &Cursor<'_>| Ok::<_, Error>(c.text("a folder or an s3:// prefix", "out/")?.to_owned());
    if !c.is_map() {
        return Ok(Sink::Parquet(ParquetSink::new(uri(&c)?)));
    }
    let fields = c.fields(SINK_KEYS, "parquet: out/")?;
    let mut sink = ParquetSink::new(uri(&fields.need("uri", "out/")?)?);
    if let Some(c) = fields.get("mode") {
        sink.mode = c.word()?;
    }
    if let Some(c) = fields.get("compression_level") {
        // The range makes it fit.
        sink.compression_level = i32::try_from(c.whole(limits::ZSTD_LEVEL, "3")?).unwrap_or(3);
    }
    if let Some(c) = fields.get("row_group_bytes") {
        sink.row_group_bytes = c.bytes(limits::FILE_BYTES, "64MiB")?;
    }
    if let Some(c) = fields.get("file_bytes") {
        sink.file_bytes = c.bytes(limits::FILE_BYTES, "512MiB")?;
    }
    sink.storage = read_storage(&fields)?;
    sink.bad_rows = BadRows::read(&fields)?;
    Ok(Sink::Parquet(sink))
}

fn read_storage(fields: &Fields<'_>) -> Result<StorageOptions> {
    let text = |name: &str, want: &str, example: &str| {
        fields.get(name).map(|c| Ok::<_, Error>(c.text(want, example)?.to_owned())).transpose()
    };
    Ok(StorageOptions {
        endpoint: text("endpoint", "a URL", "http://127.0.0.1:9000")?,
        region: text("region", "the name of a region", "us-east-1")?,
        path_style: fields.get("path_style").map(|c| c.flag()).transpose()?,
        anonymous: fields.get("anonymous").map(|c| c.flag()).transpose()?,
    })
}

fn read_names(c: &Cursor<'_>) -> Result<Vec<String>> {
    c.texts("a column name or a list of them", "[image, label]")
}

fn read_expr(c: &Cursor<'_>) -> Result<String> {
    Ok(c.text("a SQL expression", "label < 100")?.to_owned())
}

fn step_example(word: &str) -> &'static str {
    match word {
        "filter" => "filter: label < 100",
        "select" => "select: [image, label]",
        "drop" => "drop: [id]",
        "rename" => "rename: { old: new }",
        "with_column" => "with_column: { name: weight, expr: 1.0 / (label + 1) }",
        "explode" => "explode: tokens",
        "limit" => "limit: 1000",
        "map_image" => "map_image: { column: image, ops: [ { resize: [224, 224] } ] }",
        "mix_images" => {
            "mix_images: { column: image, label: label, ops: [ { mix_up: { num_classes: 1000 } } ] }"
        }
        _ => "stack: { columns: [age, price], into: features }",
    }
}

pub(crate) fn read_step(c: &Cursor<'_>) -> Result<Step> {
    let (word, value, place) = c.tagged("a step", STEPS, &[], "filter: label < 100")?;
    let example = step_example(word);
    let Some(c) = value else {
        return Err(place.error(format!("{word} has no value"), format!("for example {example}")));
    };
    Ok(match word {
        "filter" => Step::Filter(read_expr(&c)?),
        "select" => Step::Select(read_names(&c)?),
        "drop" => Step::Drop(read_names(&c)?),
        "rename" => read_rename(&c)?,
        "with_column" => read_with_column(&c)?,
        "explode" => Step::Explode(c.text("the name of a column of lists", "tokens")?.to_owned()),
        "limit" => Step::Limit(c.whole(0..=u64::MAX, "1000")?),
        "map_image" => Step::MapImage(image::read_map_image(&c)?),
        "mix_images" => Step::MixImages(mix::read_mix_images(&c)?),
        "stack" => {
            let fields = c.fields(
                &["columns", "into", "dtype"],
                "{ columns: [age, price], into: features }",
            )?;
            Step::Stack {
                columns: read_names(&fields.need("columns", "[age, price]")?)?,
                into: fields
                    .need("into", "features")?
                    .text("the name of the new column", "features")?
                    .to_owned(),
                dtype: match fields.get("dtype") {
                    Some(c) => c.word_of(&stack_dtypes())?,
                    None => DType::Float32,
                },
            }
        }
        // `tagged` has refused all other words.
        _ => return Err(Error::new(ErrorKind::Internal, format!("no reader for the step {word}"))),
    })
}

/// The dtypes of a stack: all numbers.
pub(crate) fn stack_dtypes() -> Vec<(&'static str, DType)> {
    DType::all().into_iter().filter(|(_, d)| *d != DType::Bool).collect()
}

fn read_rename(c: &Cursor<'_>) -> Result<Step> {
    let Some(entries) = c.entries() else {
        return Err(c.expected("a mapping of old names to new ones", "{ old: new }"));
    };
    let pairs = entries?
        .into_iter()
        .map(|(key, c)| {
            Ok((key.name.clone(), c.text("the new name of the column", "new")?.to_owned()))
        })
        .collect::<Result<Vec<_>>>()?;
    if pairs.is_empty() {
        return Err(c.expected("a mapping of old names to new ones", "{ old: new }"));
    }
    Ok(Step::Rename(pairs))
}

fn read_with_column(c: &Cursor<'_>) -> Result<Step> {
    // The short form `{ weight: 1.0 / (label + 1) }`: one pair whose key is none of our own.
    if let Some(entries) = c.entries()
        && let [(key, expr)] = entries?.as_slice()
        && !["name", "expr"].contains(&key.name.as_str())
    {
        return Ok(Step::WithColumn { name: key.name.clone(), expr: read_expr(expr)? });
    }
    let fields = c.fields(&["name", "expr"], "{ name: weight, expr: 1.0 / (label + 1) }")?;
    Ok(Step::WithColumn {
        name: fields.need("name", "weight")?.text("the name of the column", "weight")?.to_owned(),
        expr: read_expr(&fields.need("expr", "1.0 / (label + 1)")?)?,
    })
}
