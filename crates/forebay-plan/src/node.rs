//! One tree for YAML and JSON, with the position of every value and key where the text has them.
//!
//! The readers of `decode` see only this tree, so that a job file and a JSON plan are the
//! same language, and so that an error can name the line. Keys keep their order and duplicates are
//! kept too: the readers refuse them, with both positions.
//!
//! The text is bounded before it is parsed and while it is: anchors and aliases are allowed (they
//! save typing in long job files), but the tree that they may grow into is not larger than an
//! honest file could be.

mod not_finite;

use std::fmt;
use std::marker::PhantomData;

use forebay_core::{Error, Result};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{MessageFormatter as _, Spanned};

pub use crate::path::Position;
use crate::path::{Origin, Path, Seg};

/// Longest job file or plan in bytes. A plan with 100,000 column names of 80 characters is 8 MB.
const MAX_TEXT: usize = 16 << 20;

/// Most values in a job file, aliases written out. Twice the columns of the widest tables we know.
const MAX_NODES: usize = 250_000;

/// A value with the place where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Its position, when it was read from a text that has them.
    pub at: Option<Position>,
}

/// What a [`Node`] holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing: `null`, `~`, or a key without a value.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i128),
    /// Any other number. JSON cannot hold one that is not finite; it is written as a text.
    Float(f64),
    /// A text.
    Str(String),
    /// A list.
    Seq(Vec<Node>),
    /// Keys and values in their order, duplicates included.
    Map(Vec<(Key, Node)>),
}

/// A key of a mapping with the place where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// The key.
    pub name: String,
    /// Its position, when it was read from a text that has them.
    pub at: Option<Position>,
}

impl From<Value> for Node {
    fn from(value: Value) -> Self {
        Self { value, at: None }
    }
}

impl From<&str> for Node {
    fn from(value: &str) -> Self {
        Value::Str(value.to_owned()).into()
    }
}

impl From<bool> for Node {
    fn from(value: bool) -> Self {
        Value::Bool(value).into()
    }
}

impl From<u64> for Node {
    fn from(value: u64) -> Self {
        Value::Int(value.into()).into()
    }
}

impl From<f64> for Node {
    fn from(value: f64) -> Self {
        Value::Float(value).into()
    }
}

impl Node {
    /// A list.
    pub fn seq<T: Into<Node>>(items: impl IntoIterator<Item = T>) -> Self {
        Value::Seq(items.into_iter().map(Into::into).collect()).into()
    }

    /// A mapping.
    pub fn map<K: Into<String>>(items: impl IntoIterator<Item = (K, Node)>) -> Self {
        let key = |name: K| Key { name: name.into(), at: None };
        Value::Map(items.into_iter().map(|(k, v)| (key(k), v)).collect()).into()
    }

    /// Reads YAML 1.2. `origin` is the name of the file as the user knows it.
    pub fn from_yaml(text: &str, origin: &str) -> Result<Self> {
        check_length(text, Origin::File(origin))?;
        let options = serde_saphyr::options! {
            budget: serde_saphyr::budget! {
                max_nodes: MAX_NODES,
                max_events: 4 * MAX_NODES,
                max_total_scalar_bytes: MAX_TEXT,
                max_recorded_anchor_events: MAX_NODES,
                max_recorded_anchor_bytes: MAX_TEXT,
            },
            alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_NODES },
            duplicate_keys: serde_saphyr::DuplicateKeyPolicy::PassThrough,
            non_finite_float_policy: serde_saphyr::NonFiniteFloatPolicy::PassThrough,
            // `y` and `no` are column names; a column must not turn into a truth value.
            strict_booleans: true,
            underscored_numbers_as_strings: true,
            leading_zero_numbers_as_strings: true,
            with_snippet: false,
        };
        match serde_saphyr::from_str_with_options::<Spanned<Data<Yaml>>>(text, options) {
            Ok(spanned) => Ok(Yaml::node(spanned)),
            Err(e) => Err(yaml_error(&e, origin)),
        }
    }

    /// Reads JSON. Positions are not kept: JSON is what programs write.
    pub fn from_json(text: &str) -> Result<Self> {
        check_length(text, Origin::Plan)?;
        let parsed = serde_json::from_str(text).or_else(|e| match not_finite::marked(text) {
            Some(marked) => serde_json::from_str(&marked),
            None => Err(e),
        });
        let data: Data<Json> = parsed.map_err(|e| {
            let (line, column) = (e.line(), e.column());
            // The parser ends its message with the position, which is in the place already.
            let message = e.to_string();
            let message = message.split(" at line ").next().unwrap_or(&message).to_owned();
            Error::invalid(format!("not valid JSON: {message}"))
                .at_place(format!("plan:{line}:{column}"))
                .with_hint("JSON needs double quotes around keys and texts, and no comma after the last item")
        })?;
        Ok(data.0.into())
    }

    /// Writes JSON on one line, keys in the order of the tree. Numbers that are not finite become
    /// the texts `"nan"`, `"inf"` and `"-inf"`.
    pub fn to_json(&self) -> String {
        let mut out = String::new();
        self.write(&mut out, None);
        out
    }

    /// Writes JSON for people: one key a line, short lists on one.
    pub fn to_json_pretty(&self) -> String {
        let mut out = String::new();
        self.write(&mut out, Some(0));
        out
    }

    fn write(&self, out: &mut String, indent: Option<usize>) {
        match &self.value {
            Value::Null => out.push_str("null"),
            Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
            Value::Int(i) => out.push_str(&i.to_string()),
            Value::Float(f) => out.push_str(&float_json(*f)),
            Value::Str(s) => write_text(out, s),
            Value::Seq(items) => {
                // Lists of plain values stay on one line.
                let flat = items.iter().all(|n| !matches!(n.value, Value::Seq(_) | Value::Map(_)));
                let inner = if flat { None } else { indent.map(|n| n + 2) };
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    separate(out, i, inner, indent.is_some());
                    item.write(out, inner);
                }
                finish(out, inner, items.is_empty());
                out.push(']');
            }
            Value::Map(items) => {
                let inner = indent.map(|n| n + 2);
                out.push('{');
                for (i, (key, item)) in items.iter().enumerate() {
                    separate(out, i, inner, indent.is_some());
                    write_text(out, &key.name);
                    out.push_str(if indent.is_some() { ": " } else { ":" });
                    item.write(out, inner);
                }
                finish(out, inner, items.is_empty());
                out.push('}');
            }
        }
    }

    /// What the value is, in the user's words, for "expected …, found …".
    pub fn describe(&self) -> String {
        match &self.value {
            Value::Null => "nothing".to_owned(),
            Value::Bool(b) => b.to_string(),
            Value::Int(i) => i.to_string(),
            Value::Float(f) => format!("{f:?}"),
            Value::Str(s) => format!("the text {:?}", shorten(s, 40)),
            Value::Seq(items) if items.is_empty() => "an empty list".to_owned(),
            Value::Seq(items) => format!("a list of {}", items.len()),
            Value::Map(items) if items.is_empty() => "an empty mapping".to_owned(),
            Value::Map(items) => {
                let names: Vec<&str> = items.iter().map(|(k, _)| k.name.as_str()).collect();
                format!("a mapping with {}", shorten(&names.join(", "), 60))
            }
        }
    }

    /// The value as an argument of a call, when it is short enough to be shown there.
    pub(crate) fn argument(&self) -> Option<String> {
        match &self.value {
            Value::Null => Some("None".to_owned()),
            // As Python writes it: calls come from there.
            Value::Bool(b) => Some(if *b { "True" } else { "False" }.to_owned()),
            Value::Int(_) | Value::Float(_) => Some(self.describe()),
            Value::Str(s) => Some(format!("{:?}", shorten(s, 40))),
            Value::Seq(_) | Value::Map(_) => None,
        }
    }

    /// The position of the value at `path`, or of the nearest value above it that the text has:
    /// short forms leave out parts of the path.
    pub(crate) fn locate(&self, path: &Path) -> Option<Position> {
        let (mut node, mut at) = (self, self.at);
        for seg in path.segs() {
            let next = match (seg, &node.value) {
                (Seg::Index(i), Value::Seq(items)) => items.get(*i).map(|n| (n, n.at)),
                (Seg::Key(k), Value::Map(items)) => items
                    .iter()
                    .find(|(key, _)| key.name == *k)
                    .map(|(key, n)| (n, entry_position(key, n))),
                _ => None,
            };
            match next {
                Some((n, a)) => (node, at) = (n, a.or(at)),
                None => break,
            }
        }
        at
    }
}

/// Where a person looks for an entry of a mapping: a nested mapping begins at its key.
pub(crate) fn entry_position(key: &Key, node: &Node) -> Option<Position> {
    match node.value {
        Value::Map(_) | Value::Null => key.at.or(node.at),
        _ => node.at.or(key.at),
    }
}

/// The first `max` characters, on one line.
pub(crate) fn shorten(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        text.to_owned()
    } else {
        text.chars().take(max - 1).chain(['…']).collect()
    }
}

fn separate(out: &mut String, index: usize, inner: Option<usize>, spaced: bool) {
    if index > 0 {
        out.push(',');
        if inner.is_none() && spaced {
            out.push(' ');
        }
    }
    if let Some(n) = inner {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', n));
    }
}

fn finish(out: &mut String, inner: Option<usize>, empty: bool) {
    if let Some(n) = inner
        && !empty
    {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', n - 2));
    }
}

/// The shortest text that reads back as the same number.
fn float_json(f: f64) -> String {
    if f.is_nan() {
        "\"nan\"".to_owned()
    } else if f.is_infinite() {
        if f > 0.0 { "\"inf\"" } else { "\"-inf\"" }.to_owned()
    } else {
        format!("{f:?}")
    }
}

fn write_text(out: &mut String, text: &str) {
    use fmt::Write as _;
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn check_length(text: &str, origin: Origin<'_>) -> Result<()> {
    if text.len() <= MAX_TEXT {
        return Ok(());
    }
    Err(origin.error(
        &Path::root(),
        None,
        None,
        format!(
            "{} MiB are too many for a plan (at most {} MiB)",
            text.len() >> 20,
            MAX_TEXT >> 20
        ),
        "is this a data file? A plan says what to do with one",
    ))
}

fn yaml_error(error: &serde_saphyr::Error, origin: &str) -> Error {
    use serde_saphyr::Error as E;
    let error = error.without_snippet();
    let at = error.location().map(|l| Position { line: l.line(), column: l.column() });
    let hint = match error {
        E::MultipleDocuments { .. } => "keep one document; remove the line with ---",
        E::UnknownAnchor { .. } => {
            "put a text that starts with * or & in quotes, such as '*.parquet'"
        }
        E::RecursiveReferencesRequireWeakTypes { .. } => "write the value out instead of the alias",
        E::NullIntoString { .. } => "give the key a name, or put it in quotes",
        _ => {
            "check the indentation and brackets here, and put texts with ': ', '#', quotes or a \
              leading *, &, !, %, @, {, [ in single quotes"
        }
    };
    // The library speaks to Rust programmers in some of its messages.
    let message = match error {
        E::MultipleDocuments { .. } => "there is more than one document".to_owned(),
        E::NullIntoString { .. } => "a key is empty".to_owned(),
        E::RecursiveReferencesRequireWeakTypes { .. } => {
            "an alias stands inside its own anchor".to_owned()
        }
        _ => serde_saphyr::DefaultMessageFormatter.format_message(error).into_owned(),
    };
    // Limits arrive in several kinds of error, with the same words.
    let (message, hint) = if message.contains("recursion limit exceeded") {
        ("lists or mappings are nested too deeply".to_owned(), "a job file needs a few levels")
    } else if ["budget breached", "alias replay", "alias expansion"]
        .iter()
        .any(|limit| message.contains(limit))
    {
        let message = format!("its aliases and lists grow to more than {MAX_NODES} values");
        (message, "write the plan without so many aliases or nested lists")
    } else {
        (message, hint)
    };
    let message: String = message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    Origin::File(origin).error(&Path::root(), at, None, format!("not valid YAML: {message}"), hint)
}

/// How the children of a value arrive: with positions from YAML, bare from JSON.
trait Wrap: Sized {
    type Value: for<'de> Deserialize<'de>;
    type Name: for<'de> Deserialize<'de>;
    fn node(value: Self::Value) -> Node;
    fn key(name: Self::Name) -> Key;
}

struct Yaml;
struct Json;

fn position(at: serde_saphyr::Location) -> Option<Position> {
    (at.line() > 0).then(|| Position { line: at.line(), column: at.column() })
}

impl Wrap for Yaml {
    type Value = Spanned<Data<Self>>;
    type Name = Spanned<String>;

    fn node(value: Self::Value) -> Node {
        Node { value: value.value.0, at: position(value.referenced) }
    }

    fn key(name: Self::Name) -> Key {
        Key { name: name.value, at: position(name.referenced) }
    }
}

impl Wrap for Json {
    type Value = Data<Self>;
    type Name = String;

    fn node(value: Self::Value) -> Node {
        value.0.into()
    }

    fn key(name: Self::Name) -> Key {
        Key { name, at: None }
    }
}

struct Data<W>(Value, PhantomData<W>);

impl<'de, W: Wrap> Deserialize<'de> for Data<W> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        Ok(Self(deserializer.deserialize_any(DataVisitor::<W>(PhantomData))?, PhantomData))
    }
}

struct DataVisitor<W>(PhantomData<W>);

impl<'de, W: Wrap> Visitor<'de> for DataVisitor<W> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> std::result::Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: de::Error>(self) -> std::result::Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> std::result::Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E: de::Error>(self, v: bool) -> std::result::Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E: de::Error>(self, v: i64) -> std::result::Result<Value, E> {
        Ok(Value::Int(v.into()))
    }

    fn visit_u64<E: de::Error>(self, v: u64) -> std::result::Result<Value, E> {
        Ok(Value::Int(v.into()))
    }

    fn visit_i128<E: de::Error>(self, v: i128) -> std::result::Result<Value, E> {
        Ok(Value::Int(v))
    }

    fn visit_f64<E: de::Error>(self, v: f64) -> std::result::Result<Value, E> {
        Ok(Value::Float(v))
    }

    fn visit_str<E: de::Error>(self, v: &str) -> std::result::Result<Value, E> {
        self.visit_string(v.to_owned())
    }

    fn visit_string<E: de::Error>(self, v: String) -> std::result::Result<Value, E> {
        Ok(not_finite::number(&v).map_or(Value::Str(v), Value::Float))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element::<W::Value>()? {
            items.push(W::node(item));
        }
        Ok(Value::Seq(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(name) = map.next_key::<W::Name>()? {
            let value = map.next_value::<W::Value>()?;
            items.push((W::key(name), W::node(value)));
        }
        Ok(Value::Map(items))
    }
}
