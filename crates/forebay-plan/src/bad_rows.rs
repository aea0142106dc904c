//! Bad rows, as far as a plan and a loader's options speak of them: how many there may be, where they
//! are listed, and which loaders can skip them.
//!
//! What is done with a bad row is the step's to say ([`OnError`]); how much of it is too much is a
//! question of the run. So neither the limits nor the list enter the hash of a plan.

use forebay_core::{Error, Result};

use crate::decode::cursor::Fields;
use crate::loader::LoaderOptions;
use crate::node::Node;
use crate::path::Path;
use crate::plan::{OnError, Plan, Step};
use crate::schedule::{EpochEnd, Shuffle};

/// How many rows of a run may be bad, and where they are listed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BadRows {
    /// `max_bad_rows`: most bad rows of an epoch (on this rank) or a job. Default: any number.
    pub most: Option<u64>,
    /// `max_bad_share`: the largest share of them among all rows, 0 to 1. Default: any.
    pub share: Option<f64>,
    /// `bad_rows_to`: a local file to which a line of JSON is added for each. Default: none.
    pub list: Option<String>,
}

impl BadRows {
    /// The three keys, which a loader and a sink have in common.
    pub(crate) fn read(fields: &Fields<'_>) -> Result<Self> {
        let most = fields.get("max_bad_rows").map(|c| c.whole(0..=u64::MAX, "100")).transpose()?;
        let share = fields.get("max_bad_share").map(|c| {
            let share = c.number(SHARE, "0.01")?;
            if (0.0..=1.0).contains(&share) { Ok(share) } else { Err(c.expected(SHARE, "0.01")) }
        });
        let list = fields.get("bad_rows_to").map(|c| {
            let path = c.text("the path of a local file", LIST)?;
            match refused(path) {
                Some(message) => Err(c.error(message, HINT)),
                None => Ok(path.to_owned()),
            }
        });
        Ok(Self { most, share: share.transpose()?, list: list.transpose()? })
    }

    /// The same checks for options that were not read; `place` shows where a key stands.
    pub(crate) fn validate(&self, place: impl Fn(&str) -> String) -> Result<()> {
        if let Some(share) = self.share.filter(|share| !(0.0..=1.0).contains(share)) {
            return Err(Error::invalid(format!("expected {SHARE}, found {share}"))
                .at_place(place("max_bad_share"))
                .with_hint("for example 0.01"));
        }
        match self.list.as_deref().and_then(refused) {
            Some(message) => {
                Err(Error::invalid(message).at_place(place("bad_rows_to")).with_hint(HINT))
            }
            None => Ok(()),
        }
    }

    /// What is given, as keys.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (String, Node)> {
        [
            ("max_bad_rows", self.most.map(Node::from)),
            ("max_bad_share", self.share.map(Node::from)),
            ("bad_rows_to", self.list.as_deref().map(Node::from)),
        ]
        .into_iter()
        .filter_map(|(key, node)| Some((key.to_owned(), node?)))
    }
}

const SHARE: &str = "a share from 0 to 1";
const LIST: &str = "bad.jsonl";
const HINT: &str = "name a local file, for example bad.jsonl";

/// Why a path cannot be a list's.
fn refused(path: &str) -> Option<String> {
    if path.trim().is_empty() {
        return Some("the path is empty".to_owned());
    }
    path.contains("://").then(|| format!("{path:?} is not the path of a local file"))
}

impl LoaderOptions {
    /// Checks that rows can be replaced where a step of the plan skips bad ones.
    ///
    /// # Errors
    /// `epoch_end="partial"`, which is also the default of `shuffle="none"`; a plan that multiplies
    /// rows.
    ///
    /// ```
    /// # use forebay_plan::{ImageMode, LoaderOptions, MapImage, OnError, PlanBuilder, schedule::EpochEnd};
    /// let image = MapImage { mode: Some(ImageMode::Rgb), on_error: OnError::Skip, ..MapImage::new("image", vec![]) };
    /// let plan = PlanBuilder::parquet(["data/"]).map_image(image).build()?;
    /// let options = LoaderOptions::new(32);
    /// options.check_bad_rows(&plan)?;
    /// let partial = LoaderOptions { epoch_end: Some(EpochEnd::Partial), ..options };
    /// assert!(partial.check_bad_rows(&plan).is_err());
    /// # Ok::<(), forebay_core::Error>(())
    /// ```
    pub fn check_bad_rows(&self, plan: &Plan) -> Result<()> {
        let skips = |s: &Step| matches!(s, Step::MapImage(map) if map.on_error == OnError::Skip);
        let Some(step) = plan.steps.iter().position(skips) else { return Ok(()) };
        let path = Path::step(step, "map_image").key("on_error");
        if let Some(explode) = plan.multiplies() {
            return Err(Error::invalid(format!(
                "a loader cannot skip rows of a stream: {} multiplies rows",
                Path::step(explode, "explode")
            ))
            .at_place(path.to_string())
            .with_hint("use on_error=\"null\", which marks them, or write the rows with write_parquet(), which leaves them out, and load those"));
        }
        let partial = match self.epoch_end {
            Some(end) => end == EpochEnd::Partial,
            None => self.shuffle == Shuffle::None,
        };
        if !partial {
            return Ok(());
        }
        let why = if self.epoch_end.is_some() { "" } else { ", the default of shuffle=\"none\"" };
        Err(Error::invalid(format!(
            "epoch_end=\"partial\"{why} delivers every row once, and {path} skips bad ones in favour of others"
        ))
        .at_place("loader(epoch_end=...)")
        .with_hint("use on_error=\"null\" in map_image, or give epoch_end=\"drop\" or \"pad\""))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::builder::PlanBuilder;
    use crate::plan::{ImageMode, MapImage};

    fn skipping() -> MapImage {
        let mode = Some(ImageMode::Rgb);
        MapImage { mode, on_error: OnError::Skip, ..MapImage::new("image", Vec::new()) }
    }

    #[test]
    fn which_loaders_can_skip() {
        let plan = PlanBuilder::parquet(["x"]).map_image(skipping()).build().unwrap();
        let none = LoaderOptions { shuffle: Shuffle::None, ..LoaderOptions::new(4) };
        let e = none.check_bad_rows(&plan).unwrap_err();
        assert!(e.message().contains("the default of shuffle=\"none\""), "{e}");
        assert!(e.hint().unwrap().contains("null"));
        for end in [EpochEnd::Drop, EpochEnd::Pad] {
            LoaderOptions { epoch_end: Some(end), ..none.clone() }.check_bad_rows(&plan).unwrap();
        }
        let plan =
            PlanBuilder::parquet(["x"]).explode("tags").map_image(skipping()).build().unwrap();
        let e = LoaderOptions::new(4).check_bad_rows(&plan).unwrap_err();
        assert_eq!(e.place(), Some("steps[1].map_image.on_error"));
    }

    #[test]
    fn a_limit_comes_before_rows_are_skipped() {
        PlanBuilder::parquet(["x"]).limit(5).map_image(skipping()).build().unwrap();
        let e = PlanBuilder::parquet(["x"]).map_image(skipping()).limit(5).build().unwrap_err();
        assert_eq!(e.place(), Some("steps[1].limit"));
    }

    #[test]
    fn limits_are_checked_without_being_read() {
        for (bad_rows, place) in [
            (BadRows { share: Some(1.5), ..BadRows::default() }, "loader(max_bad_share=...)"),
            (BadRows { share: Some(f64::NAN), ..BadRows::default() }, "loader(max_bad_share=...)"),
            (
                BadRows { list: Some("s3://b/x".into()), ..BadRows::default() },
                "loader(bad_rows_to=...)",
            ),
        ] {
            let options = LoaderOptions { bad_rows, ..LoaderOptions::new(4) };
            assert_eq!(options.validate().unwrap_err().place(), Some(place));
        }
    }
}
