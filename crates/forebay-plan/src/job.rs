//! A job file that remembers its lines.
//!
//! Some mistakes show only after the plan is read: a column that the dataset does not have, an
//! expression that does not parse. Such errors name a path of the plan; [`JobFile::place`] puts the
//! line of the file before it.

use forebay_core::{Error, Result};

use crate::node::Node;
use crate::path::{Origin, Path};
use crate::plan::Plan;

/// A YAML job file: its plan, and where in the text each part stands.
#[derive(Clone, Debug)]
pub struct JobFile {
    plan: Plan,
    node: Node,
    origin: String,
}

impl JobFile {
    /// Reads and validates a job file. `origin` is the file's name as the user gave it.
    pub fn from_yaml(text: &str, origin: &str) -> Result<Self> {
        let node = Node::from_yaml(text, origin)?;
        let plan = Plan::decode(&node, Origin::File(origin))?;
        Ok(Self { plan, node, origin: origin.to_owned() })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The plan, without the text.
    pub fn into_plan(self) -> Plan {
        self.plan
    }

    /// Puts file and line before the place of an error that names a path of the plan. Errors with
    /// other places, or with none, are returned as they are.
    ///
    /// ```
    /// # use forebay_core::Error;
    /// # use forebay_plan::JobFile;
    /// let job = JobFile::from_yaml("source: { parquet: x }\nsteps:\n  - filter: labl < 100\n", "job.yaml")?;
    /// let error = job.place(Error::invalid("no column \"labl\"").at_place("steps[0].filter"));
    /// assert_eq!(error.place(), Some("job.yaml:3:13: steps[0].filter"));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn place(&self, error: Error) -> Error {
        error.map_place(|place| match self.path(place) {
            Some(path) => Origin::File(&self.origin).place(&path, self.node.locate(&path), None),
            None => place.to_owned(),
        })
    }

    /// Reads a path as it is shown; None when it is none of this plan.
    fn path(&self, text: &str) -> Option<Path> {
        let mut path = Path::root();
        let mut rest = text;
        while !rest.is_empty() {
            if let Some(tail) = rest.strip_prefix("[\"") {
                // A quoted key, as `Debug` writes it: the JSON rules are close enough to read it.
                let end = closing_quote(tail)?;
                let key: String = serde_json::from_str(&format!("\"{}\"", &tail[..end])).ok()?;
                path = path.key(&key);
                rest = tail[end + 1..].strip_prefix(']')?;
            } else if let Some(tail) = rest.strip_prefix('[') {
                let (index, tail) = tail.split_once(']')?;
                path = path.index(index.parse().ok()?);
                rest = tail;
            } else {
                let tail = rest.strip_prefix('.').unwrap_or(rest);
                let end = tail.find(['.', '[']).unwrap_or(tail.len());
                path = path.key(&tail[..end]);
                rest = &tail[end..];
            }
        }
        let first = path.to_string();
        let known = ["source", "steps", "sink", "version"];
        known.iter().any(|k| first.starts_with(k)).then_some(path)
    }
}

/// Where an escaped text ends.
fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (i, c) in text.char_indices() {
        match c {
            '"' if !escaped => return Some(i),
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const JOB: &str = "source: { parquet: { uri: x, columns: [a, b] } }\nsteps:\n  - map_image:\n      column: a\n      ops:\n        - resize: 9\n  - rename: { \"b c\": d }\n";

    fn place(path: &str) -> String {
        let job = JobFile::from_yaml(JOB, "j.yaml").unwrap();
        job.place(Error::invalid("x").at_place(path)).place().unwrap().to_owned()
    }

    #[test]
    fn paths_find_their_lines() {
        assert_eq!(place("source.parquet.columns[1]"), "j.yaml:1:43: source.parquet.columns[1]");
        assert_eq!(place("steps[0].map_image"), "j.yaml:3:5: steps[0].map_image");
        assert_eq!(place("steps[0].map_image.column"), "j.yaml:4:15: steps[0].map_image.column");
        // The short form has no `size`: the nearest value is the operator's.
        assert_eq!(
            place("steps[0].map_image.ops[0].resize.size"),
            "j.yaml:6:19: steps[0].map_image.ops[0].resize.size"
        );
        assert_eq!(place("steps[1].rename[\"b c\"]"), "j.yaml:7:22: steps[1].rename[\"b c\"]");
    }

    #[test]
    fn other_places_stay() {
        for other in
            ["loader(batch_size=0)", "elsewhere", "steps[x]", "steps[\"unclosed", "j.yaml:1:1"]
        {
            assert_eq!(place(other), other);
        }
    }
}
