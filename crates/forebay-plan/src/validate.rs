//! What must hold of a plan without knowing the data: ranges, and values against each other.
//!
//! Plans from files, from JSON and from the builder all pass here; only how a place is shown
//! differs, so the caller gives that as a function of the path. What needs the columns of the data
//! is [`crate::columns`]; SQL expressions are checked by `forebay-sql`.

mod mix;

use std::collections::HashSet;

use forebay_core::{DType, Error, Result};

use crate::decode::{image::DTYPES, stack_dtypes};
use crate::limits;
use crate::path::{Origin, Path};
use crate::plan::{Broken, ImageOp, MapImage, OnError, Plan, Sink, Source, Step, StorageOptions};
use crate::words::Word as _;

/// Shows the place of a path.
pub(crate) type Places<'a> = dyn Fn(&Path) -> String + 'a;

impl Plan {
    /// Checks all that needs no data: ranges, empty lists, duplicate names, operators that do not
    /// fit each other, credentials. Plans read from a file or from JSON have passed already.
    pub fn validate(&self) -> Result<()> {
        self.validate_at(&|path: &Path| Origin::Plan.place(path, None, None))
    }

    pub(crate) fn validate_at(&self, places: &Places<'_>) -> Result<()> {
        let Source::Parquet(source) = &self.source;
        let path = Path::root().key("source").key("parquet");
        if source.uri.is_empty() && source.snapshot.is_none() {
            return Err(wrong(
                places,
                &path.key("uri"),
                "there is nothing to read",
                "name at least one path, glob, folder or URI",
            ));
        }
        for (i, uri) in source.uri.iter().enumerate() {
            check_uri(places, &path.key("uri").index(i), uri)?;
        }
        if let Some(columns) = &source.columns {
            check_names(places, &path.key("columns"), columns)?;
        }
        check_storage(places, &path, &source.storage)?;
        for (i, step) in self.steps.iter().enumerate() {
            step.validate_at(&Path::step(i, step.name()), places)?;
        }
        if let Some(Sink::Parquet(sink)) = &self.sink {
            let path = Path::root().key("sink").key("parquet");
            check_uri(places, &path.key("uri"), &sink.uri)?;
            if sink.uri.contains(['*', '?']) {
                return Err(wrong(
                    places,
                    &path.key("uri"),
                    format!("{:?} is a pattern, and a job writes to one folder", sink.uri),
                    "name the folder; the files in it are named by the run",
                ));
            }
            let level = u64::try_from(sink.compression_level).unwrap_or(0);
            if !limits::ZSTD_LEVEL.contains(&level) {
                return Err(range(
                    places,
                    &path.key("compression_level"),
                    &limits::whole(&limits::ZSTD_LEVEL),
                    sink.compression_level,
                    "3",
                ));
            }
            for (key, bytes) in
                [("row_group_bytes", sink.row_group_bytes), ("file_bytes", sink.file_bytes)]
            {
                if !limits::FILE_BYTES.contains(&bytes) {
                    return Err(range(
                        places,
                        &path.key(key),
                        &limits::size(&limits::FILE_BYTES),
                        bytes,
                        "64MiB",
                    ));
                }
            }
            check_storage(places, &path, &sink.storage)?;
            sink.bad_rows.validate(|key| places(&path.key(key)))?;
        }
        self.check_order(places)?;
        self.check_mixing(places)
    }
}

impl Plan {
    /// A limit counts rows before any is skipped: behind the step that skips, it would promise more.
    fn check_order(&self, places: &Places<'_>) -> Result<()> {
        let skips = |s: &Step| matches!(s, Step::MapImage(map) if map.on_error == OnError::Skip);
        let Some(first) = self.steps.iter().position(skips) else { return Ok(()) };
        let limit = |(_, s): &(usize, &Step)| matches!(s, Step::Limit(_));
        match self.steps.iter().enumerate().skip(first).find(limit) {
            None => Ok(()),
            Some((i, step)) => Err(wrong(
                places,
                &Path::step(i, step.name()),
                "a limit behind a map_image with on_error: skip would count rows that are skipped later",
                "put the limit before that map_image, or use on_error: null",
            )),
        }
    }
}

impl Step {
    /// Checks one step; `path` is its own.
    pub(crate) fn validate_at(&self, path: &Path, places: &Places<'_>) -> Result<()> {
        match self {
            Self::Filter(expr) => check_expr(places, path, expr),
            Self::Select(names) | Self::Drop(names) => check_names(places, path, names),
            Self::Rename(pairs) => check_rename(places, path, pairs),
            Self::WithColumn { name, expr } => {
                check_name(places, &path.key("name"), name)?;
                check_expr(places, &path.key("expr"), expr)
            }
            Self::Explode(column) => check_name(places, path, column),
            Self::Limit(_) => Ok(()),
            Self::MapImage(map) => check_map_image(places, path, map),
            Self::MixImages(mix) => mix::check(places, path, mix),
            Self::Stack { columns, into, dtype } => {
                check_names(places, &path.key("columns"), columns)?;
                check_name(places, &path.key("into"), into)?;
                if stack_dtypes().iter().all(|(_, d)| d != dtype) {
                    return Err(wrong(
                        places,
                        &path.key("dtype"),
                        format!("a stack holds numbers, found {dtype}"),
                        "for example dtype: float32",
                    ));
                }
                Ok(())
            }
        }
    }
}

fn wrong(
    places: &Places<'_>,
    path: &Path,
    message: impl Into<String>,
    hint: impl Into<String>,
) -> Error {
    Error::invalid(message).at_place(places(path)).with_hint(hint)
}

fn range(
    places: &Places<'_>,
    path: &Path,
    want: &str,
    found: impl std::fmt::Display,
    example: &str,
) -> Error {
    wrong(
        places,
        path,
        format!("expected {want}, found {found}"),
        Origin::Plan.example(path, example),
    )
}

fn check_name(places: &Places<'_>, path: &Path, name: &str) -> Result<()> {
    if name.trim().is_empty() {
        return Err(wrong(
            places,
            path,
            "a column name is empty",
            Origin::Plan.example(path, "label"),
        ));
    }
    Ok(())
}

fn check_names(places: &Places<'_>, path: &Path, names: &[String]) -> Result<()> {
    if names.is_empty() {
        return Err(wrong(
            places,
            path,
            "the list of columns is empty",
            "name at least one column, or leave it out",
        ));
    }
    let mut seen = HashSet::with_capacity(names.len());
    for (i, name) in names.iter().enumerate() {
        check_name(places, &path.index(i), name)?;
        if !seen.insert(name) {
            return Err(wrong(
                places,
                &path.index(i),
                format!("the column {name:?} is named twice"),
                "remove one of the two",
            ));
        }
    }
    Ok(())
}

fn check_rename(places: &Places<'_>, path: &Path, pairs: &[(String, String)]) -> Result<()> {
    if pairs.is_empty() {
        return Err(wrong(places, path, "nothing is renamed", "for example rename: { old: new }"));
    }
    let (mut olds, mut news) = (HashSet::new(), HashSet::new());
    for (old, new) in pairs {
        let path = path.key(old);
        check_name(places, &path, old)?;
        check_name(places, &path, new)?;
        if !olds.insert(old) {
            return Err(wrong(
                places,
                &path,
                format!("the column {old:?} is renamed twice"),
                "remove one of the two",
            ));
        }
        if !news.insert(new) {
            return Err(wrong(
                places,
                &path,
                format!("two columns would be called {new:?}"),
                "choose another name for one of them",
            ));
        }
    }
    Ok(())
}

fn check_expr(places: &Places<'_>, path: &Path, expr: &str) -> Result<()> {
    if expr.trim().is_empty() {
        return Err(wrong(places, path, "the SQL expression is empty", "for example label < 100"));
    }
    Ok(())
}

fn check_uri(places: &Places<'_>, path: &Path, uri: &str) -> Result<()> {
    if uri.trim().is_empty() {
        return Err(wrong(places, path, "the uri is empty", "name a path, folder or s3:// URI"));
    }
    if limits::has_credentials(uri) {
        return Err(wrong(places, path, limits::CREDENTIALS, limits::CREDENTIALS_HINT));
    }
    Ok(())
}

fn check_storage(places: &Places<'_>, path: &Path, storage: &StorageOptions) -> Result<()> {
    if let Some(endpoint) = &storage.endpoint {
        let path = path.key("endpoint");
        if limits::has_credentials(endpoint) {
            return Err(wrong(places, &path, limits::CREDENTIALS, limits::CREDENTIALS_HINT));
        }
        let host = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
        if host.is_none_or(|h| h.trim_matches('/').is_empty()) {
            return Err(range(
                places,
                &path,
                "a URL that begins with http:// or https://",
                format_args!("the text {endpoint:?}"),
                "http://127.0.0.1:9000",
            ));
        }
    }
    if storage.region.as_ref().is_some_and(|r| r.trim().is_empty()) {
        return Err(wrong(
            places,
            &path.key("region"),
            "the region is empty",
            "for example region: us-east-1",
        ));
    }
    Ok(())
}

fn check_map_image(places: &Places<'_>, path: &Path, map: &MapImage) -> Result<()> {
    check_name(places, &path.key("column"), &map.column)?;
    if DTYPES.iter().all(|(_, d)| *d != map.dtype) {
        let words: Vec<&str> = DTYPES.iter().map(|(w, _)| *w).collect();
        return Err(range(
            places,
            &path.key("dtype"),
            &limits::one_of(&words),
            map.dtype,
            "float32",
        ));
    }
    // Before what follows, which takes the output for a tensor.
    if map.encoding().is_some() {
        if let Some(broken) = map.unencodable() {
            return Err(against_rule(places, path, map, broken));
        }
        if map.dtype != DType::UInt8 {
            return Err(wrong(
                places,
                &path.key("dtype"),
                format!("encode_image writes pixels of 8 bits, found the dtype {}", map.dtype),
                "leave dtype out",
            ));
        }
    }
    let alike = map.encoding().is_none();
    if map.on_error != OnError::Raise && map.mode.is_none() && alike {
        return Err(wrong(
            places,
            &path.key("on_error"),
            format!(
                "{} needs a mode: what stands in place of a bad image must be like the others",
                map.on_error.word()
            ),
            "give mode: RGB (or L, RGBA) beside on_error",
        ));
    }
    for (i, op) in map.ops.iter().enumerate() {
        let path = path.key("ops").index(i).key(op.name());
        check_op(places, &path, op)?;
        if let ImageOp::Normalize { mean, std } = op {
            if !map.dtype.is_float() {
                return Err(wrong(
                    places,
                    &path,
                    format!(
                        "normalize needs a float dtype, and this map_image writes {}",
                        map.dtype
                    ),
                    "set dtype: float32 beside ops, or leave normalize out",
                ));
            }
            check_channels(places, &path, map, mean.len(), std.len())?;
        }
    }
    map.broken().map_or(Ok(()), |broken| Err(against_rule(places, path, map, broken)))
}

/// The error of a rule that an operator breaks.
fn against_rule(places: &Places<'_>, path: &Path, map: &MapImage, broken: Broken) -> Error {
    let Broken { op, key, message, hint } = broken;
    let name = map.ops.get(op).map_or("", ImageOp::name);
    let path = path.key("ops").index(op).key(name);
    let path = key.map_or(path.clone(), |key| path.key(key));
    wrong(places, &path, message, hint)
}

fn check_channels(
    places: &Places<'_>,
    path: &Path,
    map: &MapImage,
    mean: usize,
    std: usize,
) -> Result<()> {
    if mean != std {
        return Err(wrong(
            places,
            path,
            format!("mean has {mean} values and std has {std}"),
            "give both one value for each channel",
        ));
    }
    let Some(mode) = map.output_mode() else { return Ok(()) };
    if mean != 1 && mean != mode.channels() {
        let (n, name) = (mode.channels(), mode.name());
        return Err(wrong(
            places,
            path,
            format!("mean and std have {mean} values, and mode {name} has {n} channels"),
            format!(
                "give {}, or another mode",
                if n == 1 { "one value".to_owned() } else { format!("{n} values or one") }
            ),
        ));
    }
    Ok(())
}

fn check_op(places: &Places<'_>, path: &Path, op: &ImageOp) -> Result<()> {
    match op {
        ImageOp::Resize { size, max_size, .. } => {
            if size.is_empty() || size.len() > 2 {
                return Err(range(
                    places,
                    &path.key("size"),
                    "one number or [height, width]",
                    format_args!("a list of {}", size.len()),
                    "256",
                ));
            }
            check_edges(places, &path.key("size"), size)?;
            if let Some(max) = max_size {
                let path = path.key("max_size");
                check_edges(places, &path, &[*max])?;
                if size.len() == 2 {
                    return Err(wrong(
                        places,
                        &path,
                        "max_size limits the longer edge, and size fixes both edges",
                        "leave max_size out, or give size as one number",
                    ));
                }
                if size.first().is_some_and(|s| s >= max) {
                    return Err(wrong(
                        places,
                        &path,
                        format!(
                            "max_size must be larger than size, found {max} for size {}",
                            size[0]
                        ),
                        "max_size limits the longer edge, size is the shorter one",
                    ));
                }
            }
        }
        ImageOp::CenterCrop { size } => check_edges(places, &path.key("size"), size)?,
        ImageOp::RandomCrop { size, padding, .. } => {
            check_edges(places, &path.key("size"), size)?;
            check_padding(places, path, padding.as_ref().map_or(&[], |p| p))?;
        }
        ImageOp::Pad { padding, .. } => check_padding(places, path, padding)?,
        ImageOp::GaussianBlur { kernel_size, .. } => {
            check_edges(places, &path.key("kernel_size"), kernel_size)?;
        }
        ImageOp::RandomResizedCrop { size, scale, ratio, .. } => {
            check_edges(places, &path.key("size"), size)?;
            check_interval(places, &path.key("scale"), *scale, "[0.08, 1.0]")?;
            check_interval(places, &path.key("ratio"), *ratio, "[0.75, 1.3333]")?;
        }
        ImageOp::RandomHorizontalFlip { p } if !(0.0..=1.0).contains(p) => {
            return Err(range(places, &path.key("p"), "a probability from 0 to 1", p, "0.5"));
        }
        ImageOp::Normalize { mean, std } => {
            for (key, values) in [("mean", mean), ("std", std)] {
                let path = path.key(key);
                if values.is_empty() || values.len() > limits::MAX_CHANNELS {
                    let found = format!("{} values", values.len());
                    return Err(range(
                        places,
                        &path,
                        "one number for each channel",
                        found,
                        "[0.5, 0.5, 0.5]",
                    ));
                }
                for (i, v) in values.iter().enumerate() {
                    if !v.is_finite() {
                        return Err(range(places, &path.index(i), "a finite number", v, "0.5"));
                    }
                    if key == "std" && *v == 0.0 {
                        return Err(wrong(
                            places,
                            &path.index(i),
                            "a standard deviation of 0 would divide by zero",
                            "use 1 to leave a channel as it is",
                        ));
                    }
                }
            }
        }
        // What else there is has been checked with the chain, by `MapImage::broken`.
        _ => {}
    }
    Ok(())
}

fn check_padding(places: &Places<'_>, path: &Path, padding: &[u32]) -> Result<()> {
    let Some(side) = padding.iter().find(|p| !limits::PADDING.contains(p)) else { return Ok(()) };
    let want = format!("a whole number from 0 to {}", limits::PADDING.end());
    Err(range(places, &path.key("padding"), &want, side, "4"))
}

fn check_edges(places: &Places<'_>, path: &Path, size: &[u32]) -> Result<()> {
    match size.iter().find(|s| !limits::EDGE.contains(s)) {
        None => Ok(()),
        Some(s) => {
            let want =
                format!("a whole number from {} to {}", limits::EDGE.start(), limits::EDGE.end());
            Err(range(places, path, &want, s, "224"))
        }
    }
}

fn check_interval(
    places: &Places<'_>,
    path: &Path,
    [low, high]: [f64; 2],
    example: &str,
) -> Result<()> {
    if low > 0.0 && low <= high && high.is_finite() {
        return Ok(());
    }
    let found = format!("[{low}, {high}]");
    Err(range(places, path, "[lower, upper], both positive and in this order", found, example))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::plan::ParquetSource;

    fn plan(step: Step) -> Plan {
        let source = ParquetSource { uri: vec!["x".into()], ..Default::default() };
        Plan { source: Source::Parquet(source), steps: vec![step], sink: None }
    }

    /// What only the builder can get wrong: the readers refuse it before it is a plan.
    #[test]
    fn plans_of_the_builder_are_checked_too() {
        for (step, place) in [
            (Step::Filter(" ".into()), "steps[0].filter"),
            (Step::Select(vec![]), "steps[0].select"),
            (Step::Drop(vec!["a".into(), "a".into()]), "steps[0].drop[1]"),
            (Step::Rename(vec![]), "steps[0].rename"),
            (Step::Explode(" ".into()), "steps[0].explode"),
            (
                Step::Rename(vec![("a".into(), "c".into()), ("b".into(), "c".into())]),
                "steps[0].rename.b",
            ),
            (
                Step::WithColumn { name: String::new(), expr: "1".into() },
                "steps[0].with_column.name",
            ),
            (
                Step::Stack { columns: vec!["a".into()], into: "f".into(), dtype: DType::Bool },
                "steps[0].stack.dtype",
            ),
            (
                Step::MapImage(MapImage { dtype: DType::Int64, ..MapImage::new("a", vec![]) }),
                "steps[0].map_image.dtype",
            ),
            (
                Step::MapImage(MapImage::new("a", vec![ImageOp::CenterCrop { size: [0, 9] }])),
                "steps[0].map_image.ops[0].center_crop.size",
            ),
        ] {
            let error = plan(step).validate().unwrap_err();
            assert_eq!(error.place(), Some(place), "{error:?}");
            assert!(error.hint().is_some());
        }
    }
}
