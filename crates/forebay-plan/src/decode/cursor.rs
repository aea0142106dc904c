//! A value of the tree together with where it is: the readers of single values.
//!
//! A reader says what it wants; when the value is something else, the error says both, the place,
//! and how it would be written right.

use std::ops::RangeInclusive;

use forebay_core::{Error, ErrorKind, Result, suggest};

use crate::limits;
use crate::node::{Key, Node, Position, Value, entry_position, shorten};
use crate::path::{Origin, Path};
use crate::size::parse_size;
use crate::words::Word;

/// A value and where it is.
#[derive(Clone)]
pub(crate) struct Cursor<'n> {
    pub(crate) node: &'n Node,
    pub(crate) path: Path,
    pub(crate) origin: Origin<'n>,
    at: Option<Position>,
}

impl<'n> Cursor<'n> {
    pub(crate) fn root(node: &'n Node, origin: Origin<'n>) -> Self {
        Self { node, path: Path::root(), origin, at: node.at }
    }

    /// An error about this value.
    pub(crate) fn error(&self, message: impl Into<String>, hint: impl Into<String>) -> Error {
        self.origin.error(&self.path, self.at, self.node.argument().as_deref(), message, hint)
    }

    /// As [`Self::error`], for words that are right and not available yet.
    pub(crate) fn unsupported(&self, message: impl Into<String>, hint: impl Into<String>) -> Error {
        let place = self.origin.place(&self.path, self.at, self.node.argument().as_deref());
        Error::new(ErrorKind::Unsupported, message).at_place(place).with_hint(hint)
    }

    /// "expected …, found …", with an example of a right value.
    pub(crate) fn expected(&self, want: &str, example: &str) -> Error {
        self.error(
            format!("expected {want}, found {}", self.node.describe()),
            self.origin.example(&self.path, example),
        )
    }

    pub(crate) fn is_map(&self) -> bool {
        matches!(self.node.value, Value::Map(_))
    }

    /// The items of a list.
    pub(crate) fn items(&self) -> Option<Vec<Self>> {
        let Value::Seq(items) = &self.node.value else { return None };
        let item = |(i, node): (usize, &'n Node)| Self {
            node,
            path: self.path.index(i),
            origin: self.origin,
            at: node.at.or(self.at),
        };
        Some(items.iter().enumerate().map(item).collect())
    }

    /// The entries of a mapping with free keys; a key that is there twice is refused.
    pub(crate) fn entries(&self) -> Option<Result<Vec<(&'n Key, Self)>>> {
        let Value::Map(items) = &self.node.value else { return None };
        Some(
            self.unique(items).map(|()| items.iter().map(|(k, n)| (k, self.child(k, n))).collect()),
        )
    }

    /// The entries of a mapping whose keys are `known`.
    pub(crate) fn fields(
        &self,
        known: &'static [&'static str],
        example: &str,
    ) -> Result<Fields<'n>> {
        let Value::Map(items) = &self.node.value else {
            return Err(self.expected("a mapping", example));
        };
        for (key, node) in items {
            if known.contains(&key.name.as_str()) {
                continue;
            }
            let path = self.path.key(&key.name);
            let at = key.at.or(self.at);
            if limits::is_credential(&key.name) {
                // The value is not shown, not even as an argument.
                return Err(self.origin.error(
                    &path,
                    at,
                    None,
                    limits::CREDENTIALS,
                    limits::CREDENTIALS_HINT,
                ));
            }
            return Err(self.origin.error(
                &path,
                at,
                node.argument().as_deref(),
                format!("unknown key {:?}", shorten(&key.name, 40)),
                suggest::hint(&key.name, known.iter().copied()),
            ));
        }
        self.unique(items)?;
        Ok(Fields { cursor: self.clone(), items })
    }

    fn child(&self, key: &Key, node: &'n Node) -> Self {
        Self {
            node,
            path: self.path.key(&key.name),
            origin: self.origin,
            at: entry_position(key, node).or(self.at),
        }
    }

    fn unique(&self, items: &'n [(Key, Node)]) -> Result<()> {
        let mut seen = std::collections::HashMap::with_capacity(items.len());
        for (key, _) in items {
            if let Some(first) = seen.insert(key.name.as_str(), key) {
                let first =
                    first.at.map_or(String::new(), |p| format!(" (first in line {})", p.line));
                return Err(self.origin.error(
                    &self.path.key(&key.name),
                    key.at.or(self.at),
                    None,
                    format!("the key {:?} is there twice{first}", shorten(&key.name, 40)),
                    "remove one of the two",
                ));
            }
        }
        Ok(())
    }

    /// A text that is not empty.
    pub(crate) fn text(&self, want: &str, example: &str) -> Result<&'n str> {
        match &self.node.value {
            Value::Str(s) if !s.trim().is_empty() => Ok(s),
            Value::Str(_) => Err(self.error(
                format!("expected {want}, found an empty text"),
                self.origin.example(&self.path, example),
            )),
            Value::Bool(_) | Value::Int(_) | Value::Float(_) => Err(self.error(
                format!("expected {want}, found {}", self.node.describe()),
                "put it in quotes when it is meant as text",
            )),
            _ => Err(self.expected(want, example)),
        }
    }

    /// One text or a list of texts, at least one.
    pub(crate) fn texts(&self, want: &str, example: &str) -> Result<Vec<String>> {
        match self.items() {
            Some(items) if items.is_empty() => Err(self.error(
                format!("expected {want}, found an empty list"),
                self.origin.example(&self.path, example),
            )),
            Some(items) => items.iter().map(|i| Ok(i.text(want, example)?.to_owned())).collect(),
            None => Ok(vec![self.text(want, example)?.to_owned()]),
        }
    }

    pub(crate) fn flag(&self) -> Result<bool> {
        match &self.node.value {
            Value::Bool(b) => Ok(*b),
            Value::Str(s)
                if ["true", "yes", "on", "false", "no", "off"]
                    .contains(&s.to_lowercase().as_str()) =>
            {
                let right = ["true", "yes", "on"].contains(&s.to_lowercase().as_str());
                let right = Node::from(right);
                let right = match self.origin {
                    Origin::Call(_) | Origin::Method => right.argument().unwrap_or_default(),
                    Origin::File(_) | Origin::Plan => right.describe(),
                };
                Err(self.error(
                    format!("expected true or false, found {}", self.node.describe()),
                    format!("write {right} without quotes"),
                ))
            }
            _ => Err(self.expected("true or false", "true")),
        }
    }

    /// A whole number in a range.
    pub(crate) fn whole(&self, range: RangeInclusive<u64>, example: &str) -> Result<u64> {
        let want = limits::whole(&range);
        match &self.node.value {
            Value::Int(i) => match u64::try_from(*i) {
                Ok(n) if range.contains(&n) => Ok(n),
                _ => Err(self.expected(&want, example)),
            },
            Value::Str(s) if s.trim().parse::<u64>().is_ok() => Err(self.error(
                format!("expected {want}, found {}", self.node.describe()),
                "write the number without quotes",
            )),
            _ => Err(self.expected(&want, example)),
        }
    }

    /// A whole number in a range of `u32`.
    pub(crate) fn small(&self, range: RangeInclusive<u32>, example: &str) -> Result<u32> {
        let (low, high) = (u64::from(*range.start()), u64::from(*range.end()));
        let n = self.whole(low..=high, example)?;
        // `whole` has checked that it fits.
        Ok(u32::try_from(n).unwrap_or(u32::MAX))
    }

    /// A number, whole or not.
    pub(crate) fn number(&self, want: &str, example: &str) -> Result<f64> {
        match &self.node.value {
            Value::Float(f) if f.is_finite() => Ok(*f),
            Value::Float(_) => Err(self.expected("a finite number", example)),
            Value::Int(i) => Ok(*i as f64),
            Value::Str(s) if s.trim().parse::<f64>().is_ok_and(f64::is_finite) => Err(self.error(
                format!("expected {want}, found {}", self.node.describe()),
                "write the number without quotes",
            )),
            _ => Err(self.expected(want, example)),
        }
    }

    /// Bytes: a whole number or a size.
    pub(crate) fn bytes(&self, range: RangeInclusive<u64>, example: &str) -> Result<u64> {
        let n = match &self.node.value {
            Value::Int(i) => u64::try_from(*i).ok(),
            Value::Str(s) => parse_size(s),
            _ => None,
        };
        match n {
            Some(n) if range.contains(&n) => Ok(n),
            Some(_) => Err(self.expected(&limits::size(&range), example)),
            None => Err(self.expected("a number of bytes or a size such as 64MiB", example)),
        }
    }

    /// One word of a fixed list.
    pub(crate) fn word<W: Word>(&self) -> Result<W> {
        self.word_of(&W::all())
    }

    /// One word of a part of a list.
    pub(crate) fn word_of<W: Word>(&self, all: &[(&'static str, W)]) -> Result<W> {
        let words: Vec<&str> = all.iter().map(|(w, _)| *w).collect();
        let Value::Str(s) = &self.node.value else {
            let example = words.first().copied().unwrap_or_default();
            return Err(self.expected(&limits::one_of(&words), example));
        };
        if let Some((_, value)) = all.iter().find(|(w, _)| w == s) {
            return Ok(*value);
        }
        if let Some((_, instead)) = W::later().iter().find(|(w, _)| w == s) {
            return Err(self.unsupported(format!("{s:?} is not available yet"), *instead));
        }
        Err(self.error(
            format!("expected {}, found {}", limits::one_of(&words), self.node.describe()),
            suggest::hint(s, words),
        ))
    }

    /// A word with its value, as steps, operators, sources and sinks are written: a mapping of one
    /// key, or the bare word. None as the value for a bare word or a word without a value. `later`
    /// are words that the design has and this version does not.
    pub(crate) fn tagged(
        &self,
        what: &str,
        words: &[&str],
        later: &[&str],
        example: &str,
    ) -> Result<(&'n str, Option<Self>, Self)> {
        let (word, value, place) = match &self.node.value {
            Value::Str(s) => {
                let mut named = self.clone();
                named.path = self.path.key(s);
                (s.as_str(), None, named)
            }
            Value::Map(items) => match items.as_slice() {
                [(key, node)] => {
                    let child = self.child(key, node);
                    let mut place = child.clone();
                    place.at = key.at.or(self.at);
                    let value = (node.value != Value::Null).then_some(child);
                    (key.name.as_str(), value, place)
                }
                [] => {
                    return Err(self
                        .expected(&format!("{what}, which is one word with its value"), example));
                }
                [(first, Node { value: Value::Null, .. }), rest @ ..]
                    if words.contains(&first.name.as_str()) =>
                {
                    let inner: Vec<&str> = rest.iter().map(|(k, _)| k.name.as_str()).collect();
                    return Err(self.error(
                        format!(
                            "{} has no value, and {} stands beside it",
                            first.name,
                            shorten(&inner.join(", "), 60)
                        ),
                        format!("indent what belongs to {} further than it", first.name),
                    ));
                }
                many => {
                    let names: Vec<&str> = many.iter().map(|(k, _)| k.name.as_str()).collect();
                    let hint = if what == "a step" || what == "an operator" {
                        "begin each with its own '-'".to_owned()
                    } else {
                        format!(
                            "keep only {}, and check the indentation of the rest",
                            words.join(" or ")
                        )
                    };
                    return Err(self.error(
                        format!(
                            "{what} is one word with its value, found {}",
                            shorten(&names.join(", "), 60)
                        ),
                        hint,
                    ));
                }
            },
            _ => {
                return Err(
                    self.expected(&format!("{what}, which is one word with its value"), example)
                );
            }
        };
        if words.contains(&word) {
            return Ok((word, value, place));
        }
        let noun = what.split_once(' ').map_or(what, |(_, n)| n);
        if later.contains(&word) {
            return Err(place.unsupported(
                format!("the {noun} {word:?} is not available yet"),
                format!("use {}", words.join(" or ")),
            ));
        }
        if value.is_none() && !is_plain_word(word) {
            // A path, an expression: the word before it was forgotten.
            let want = format!("{what}, which is one word with its value");
            return Err(self.expected(&want, example));
        }
        Err(self.origin.error(
            &self.path,
            place.at,
            None,
            format!("unknown {noun} {:?}", shorten(word, 40)),
            suggest::hint(word, words.iter().copied()),
        ))
    }
}

/// The entries of a mapping with known keys.
pub(crate) struct Fields<'n> {
    pub(crate) cursor: Cursor<'n>,
    items: &'n [(Key, Node)],
}

impl<'n> Fields<'n> {
    /// The value of a key. Absent and empty (`null`) are the same: the default holds.
    pub(crate) fn get(&self, name: &str) -> Option<Cursor<'n>> {
        self.even_null(name).filter(|c| c.node.value != Value::Null)
    }

    /// The value of a key, also when it is `null`.
    pub(crate) fn even_null(&self, name: &str) -> Option<Cursor<'n>> {
        self.items.iter().find(|(k, _)| k.name == name).map(|(k, n)| self.cursor.child(k, n))
    }

    /// The value of a key that must be there.
    pub(crate) fn need(&self, name: &str, example: &str) -> Result<Cursor<'n>> {
        self.get(name).ok_or_else(|| {
            let c = &self.cursor;
            let path = c.path.key(name);
            c.origin.error(
                &c.path,
                c.at,
                None,
                format!("{name} is missing"),
                c.origin.example(&path, example),
            )
        })
    }
}

/// Whether a text looks like a word of the language at all.
fn is_plain_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}
