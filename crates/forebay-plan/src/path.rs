//! Where in a plan something is: the path of keys, the position in the text, and how both are shown.
//!
//! Every error of this crate goes through [`Origin::error`], so that none is without a place and a
//! hint. The same wrong value is shown as `job.yaml:7:5: steps[1].map_image` when it comes from a
//! file, as `steps[1].map_image` when it comes from JSON or the builder, and as
//! `loader(batch_size=0)` when it is an argument of a call.

use std::fmt::{self, Write as _};

use forebay_core::{Error, ErrorKind};

/// A position in a text, both counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Line, from 1.
    pub line: u64,
    /// Column in characters, from 1.
    pub column: u64,
}

/// One part of a [`Path`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seg {
    Key(String),
    Index(usize),
}

/// The way from the root of a plan to a value, e.g. `steps[1].map_image.ops[0]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path(Vec<Seg>);

impl Path {
    pub(crate) fn root() -> Self {
        Self::default()
    }

    pub(crate) fn key(&self, key: &str) -> Self {
        let mut segs = self.0.clone();
        segs.push(Seg::Key(key.to_owned()));
        Self(segs)
    }

    pub(crate) fn index(&self, index: usize) -> Self {
        let mut segs = self.0.clone();
        segs.push(Seg::Index(index));
        Self(segs)
    }

    /// The path of a step.
    pub(crate) fn step(index: usize, word: &str) -> Self {
        Self::root().key("steps").index(index).key(word)
    }

    pub(crate) fn segs(&self) -> &[Seg] {
        &self.0
    }

    pub(crate) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The key that the value belongs to, when the path ends with one.
    fn last_key(&self) -> Option<&str> {
        match self.0.last() {
            Some(Seg::Key(k)) => Some(k),
            _ => None,
        }
    }

    /// Without the first part, and that part when it is a key.
    fn split_first(&self) -> (Option<&str>, Self) {
        match self.0.split_first() {
            Some((Seg::Key(k), rest)) => (Some(k), Self(rest.to_vec())),
            _ => (None, self.clone()),
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, seg) in self.0.iter().enumerate() {
            match seg {
                Seg::Index(n) => write!(f, "[{n}]")?,
                Seg::Key(k) if is_word(k) => write!(f, "{}{k}", if i == 0 { "" } else { "." })?,
                Seg::Key(k) => write!(f, "[{k:?}]")?,
            }
        }
        Ok(())
    }
}

/// Whether a key can stand in a path without quotes.
fn is_word(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-')
}

/// Where a plan comes from, which decides how a place is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin<'a> {
    /// A file, by the name that the user gave.
    File(&'a str),
    /// JSON or the builder: paths are enough.
    Plan,
    /// The arguments of a call of this name.
    Call(&'a str),
    /// A step as the call of a method: its word is the first part of the path.
    Method,
}

impl Origin<'_> {
    /// The place of a value. `value` is how it is shown as an argument.
    pub(crate) fn place(self, path: &Path, at: Option<Position>, value: Option<&str>) -> String {
        match self {
            Self::Plan if path.is_root() => "plan".to_owned(),
            Self::Plan => path.to_string(),
            Self::File(name) => {
                let mut out = name.to_owned();
                if let Some(Position { line, column }) = at {
                    let _ = write!(out, ":{line}:{column}");
                }
                if !path.is_root() {
                    let _ = write!(out, ": {path}");
                }
                out
            }
            Self::Call(name) => call(name, path, value),
            Self::Method => {
                let (word, rest) = path.split_first();
                call(word.unwrap_or("step"), &rest, value)
            }
        }
    }

    /// How a value would be written right, e.g. `size: 224` or, in a call, `size=224`.
    pub(crate) fn example(self, path: &Path, value: &str) -> String {
        match (self, path.last_key()) {
            (Self::File(_) | Self::Plan, Some(key)) => format!("for example {key}: {value}"),
            (Self::Call(_), Some(key)) => format!("for example {key}={value}"),
            (Self::Method, Some(key)) if path.segs().len() > 1 => {
                format!("for example {key}={value}")
            }
            _ => format!("for example {value}"),
        }
    }

    /// An error of kind `InvalidInput` that has all that a user needs.
    pub(crate) fn error(
        self,
        path: &Path,
        at: Option<Position>,
        value: Option<&str>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Error {
        Error::new(ErrorKind::InvalidInput, message)
            .at_place(self.place(path, at, value))
            .with_hint(hint)
    }
}

fn call(name: &str, path: &Path, value: Option<&str>) -> String {
    if path.is_root() {
        format!("{name}({})", value.unwrap_or_default())
    } else {
        format!("{name}({path}={})", value.unwrap_or("..."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_by_origin() {
        let path = Path::step(1, "map_image").key("ops").index(0);
        let at = Some(Position { line: 7, column: 5 });
        assert_eq!(
            Origin::File("job.yaml").place(&path, at, None),
            "job.yaml:7:5: steps[1].map_image.ops[0]"
        );
        assert_eq!(Origin::Plan.place(&path, at, None), "steps[1].map_image.ops[0]");
        assert_eq!(Origin::Plan.place(&Path::root(), None, None), "plan");
        let path = Path::root().key("batch_size");
        assert_eq!(Origin::Call("loader").place(&path, None, Some("0")), "loader(batch_size=0)");
        let path = Path::root().key("fill").key("a b");
        assert_eq!(Origin::Call("loader").place(&path, None, None), "loader(fill[\"a b\"]=...)");
        assert_eq!(Origin::Call("loader").place(&Path::root(), None, None), "loader()");
        let path = Path::root().key("limit");
        assert_eq!(Origin::Method.place(&path, None, Some("-3")), "limit(-3)");
        let path = Path::root().key("stack").key("dtype");
        assert_eq!(Origin::Method.place(&path, None, None), "stack(dtype=...)");
    }
}
