//! Names through the steps, and the normal form that the executor runs.
//!
//! [`normalize`] checks that every column that a step names exists there, and splits a plan in two:
//! first all relational steps, then the tensor columns made from their result. The two parts
//! commute: image operators and stacks work on single rows and never change which rows there are,
//! so a filter or a limit behind them may run before them, and renaming or dropping a tensor column
//! changes only what is delivered.
//!
//! # Hidden columns
//!
//! A tensor column takes the place of the columns it is made from, but these must stay in the
//! relational part until the tensor is made. From then on they are *hidden*: no step may see them.
//! Three rules keep it so:
//!
//! - A visible relational column has the same name in the relational part as in the plan, so that
//!   SQL expressions can run as they are written.
//! - A hidden column whose name becomes that of a new column, or may be mentioned by an expression,
//!   is first renamed to a name that nothing in the plan uses. The expression then fails as it
//!   should, with an unknown column, and [`Normalized::why_not`] says why it is unknown.
//! - A column that nothing needs any more is dropped in the relational part at once. So the columns
//!   of the relational result are those of the outputs and no others, and the image column of a
//!   tensor that is dropped is never read.
//!
//! `mix_images` does mix rows with each other, and so comes behind all steps that choose rows. What it
//! takes are outputs, too: the images as they are, and labels that are tensors from then on
//! ([`Normalized::mixes`]).
//!
//! An explode between them commutes too: a tensor made before it is made once for each row that it gives,
//! and [`OutputKind::Image`] remembers that these are to be the same.
//!
//! What a step does to rows with bad images (`on_error`) commutes with all of this but a `limit` behind
//! `skip`, which [`Plan::validate`] refuses. With `null` a boolean column comes right behind the images
//! ([`valid_column`]). It is no column of the plan: it goes wherever the images go, under their name.

mod mix;

use std::collections::HashSet;

use forebay_core::{DType, Error, ErrorKind, Result, suggest};
pub use mix::Mix;

use crate::path::{Origin, Path};
use crate::plan::{MapImage, OnError, Plan, Source, Step, valid_column};

/// What a column holds, as far as the checks of names need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ColumnKind {
    /// Integers, floating point numbers and decimals.
    Number,
    /// Booleans.
    Bool,
    /// Texts.
    String,
    /// Bytes.
    Binary,
    /// Lists of any length.
    List,
    /// Lists of one length.
    FixedList,
    /// Anything else: timestamps, structs, maps, nulls.
    Other,
    /// Not known here: the result of an expression. Checked when the types are known.
    Unknown,
}

impl ColumnKind {
    fn describe(self) -> &'static str {
        match self {
            Self::Number => "numbers",
            Self::Bool => "booleans",
            Self::String => "texts",
            Self::Binary => "bytes",
            Self::List => "lists",
            Self::FixedList => "fixed-size lists",
            Self::Other => "values that are neither numbers nor bytes",
            Self::Unknown => "values of a type that is not known yet",
        }
    }
}

/// A plan in normal form, see [`normalize`].
#[derive(Clone, Debug, PartialEq)]
pub struct Normalized {
    /// The relational steps in order, each with the index of the step of the plan that it comes
    /// from. Renaming and dropping of hidden columns is among them, under the step that asked for
    /// it. The result has exactly the columns that the outputs are made from.
    pub relational: Vec<(usize, Step)>,
    /// What is delivered, in order.
    pub outputs: Vec<Output>,
    /// Which of them are mixed within each batch.
    pub mixes: Vec<Mix>,
    changes: Vec<Change>,
}

/// One delivered column.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Its name.
    pub name: String,
    /// What it is made from.
    pub kind: OutputKind,
    /// The step that made it; none when it comes from the source as it is.
    pub step: Option<usize>,
}

/// What an [`Output`] is made from. `from` names columns of the relational result.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputKind {
    /// A column of the relational result.
    Column {
        /// Its name there.
        from: String,
    },
    /// Decoded and transformed images.
    Image {
        /// The column of encoded images.
        from: String,
        /// What is done, as the plan has it. (Its `column` is the name in the plan; read `from`.)
        spec: MapImage,
        /// The index of its first operator among all image operators of the plan. It enters the key
        /// of random draws, so that two augmentations of a row do not draw the same numbers.
        operator_base: u32,
        /// Whether rows were multiplied before: then each of them has draws of its own. What was made
        /// before is repeated as it is.
        multiplied: bool,
    },
    /// Numeric columns side by side.
    Stack {
        /// The columns, in order.
        from: Vec<String>,
        /// The element type.
        dtype: DType,
    },
    /// Labels that are mixed: one share for each class.
    Label {
        /// The column: class indices, or the shares themselves.
        from: String,
        /// How many classes there are, where the plan says so.
        num_classes: Option<u32>,
    },
}

/// A name that came or went with a step.
#[derive(Clone, Debug, PartialEq)]
struct Change {
    step: usize,
    name: String,
    /// Why it cannot be used in expressions; none when it can again.
    why: Option<Why>,
}

#[derive(Clone, Debug, PartialEq)]
enum Why {
    Dropped,
    NotSelected,
    Renamed(String),
    Stacked(String),
    Tensor,
    Encoded,
}

impl Why {
    fn say(&self, name: &str, step: usize, word: &str) -> String {
        let place = Path::step(step, word);
        match self {
            Self::Dropped => format!("{place} drops {name:?}"),
            Self::NotSelected => format!("{place} leaves {name:?} out"),
            Self::Renamed(new) => format!("{place} renames {name:?} to {new:?}"),
            Self::Stacked(into) => {
                format!("{place} puts {name:?} into the tensor {into:?}; move this step before it")
            }
            Self::Tensor => {
                format!("{name:?} is a tensor since {place}; move this step before it")
            }
            Self::Encoded => {
                format!(
                    "{name:?} is made by {place} when all else is done; move this step before it"
                )
            }
        }
    }
}

impl Normalized {
    /// Why step `step` cannot use the column `name` in an expression, as a hint for the error that
    /// says so; none when no earlier step is the reason.
    pub fn why_not(&self, plan: &Plan, step: usize, name: &str) -> Option<String> {
        why_not(&self.changes, plan, step, name)
    }
}

fn why_not(changes: &[Change], plan: &Plan, step: usize, name: &str) -> Option<String> {
    let last = changes.iter().rev().find(|c| c.step < step && c.name == name)?;
    let word = plan.steps.get(last.step).map_or("", Step::name);
    last.why.as_ref().map(|why| why.say(name, last.step, word))
}

/// Checks all names of a plan against the columns of its source, and brings it into normal form.
///
/// `source` are all columns of the dataset (or those that the plan reads) with their kinds, in
/// order. Expressions are not looked into: `forebay-sql` checks them when it runs or plans
/// [`Normalized::relational`], step by step.
///
/// ```
/// # use forebay_plan::{ColumnKind, ImageOp, MapImage, OutputKind, PlanBuilder, normalize};
/// let plan = PlanBuilder::parquet(["data/"])
///     .map_image(MapImage::new("image", vec![ImageOp::center_crop([224, 224])]))
///     .filter("label < 100")
///     .build()?;
/// let source = [("image".to_owned(), ColumnKind::Binary), ("label".to_owned(), ColumnKind::Number)];
/// let normal = normalize(&plan, &source)?;
/// assert_eq!(normal.relational, [(1, plan.steps[1].clone())]);
/// assert!(matches!(normal.outputs[0].kind, OutputKind::Image { .. }));
///
/// let error = normalize(&plan, &source[1..]).unwrap_err();
/// assert_eq!(error.to_string(), "steps[0].map_image.column: there is no column \"image\" here");
/// # Ok::<(), forebay_core::Error>(())
/// ```
pub fn normalize(plan: &Plan, source: &[(String, ColumnKind)]) -> Result<Normalized> {
    plan.validate()?;
    let mut walk = Walk::new(plan, source)?;
    for (index, step) in plan.steps.iter().enumerate() {
        walk.index = index;
        walk.step(step)?;
    }
    walk.check_valid_columns()?;
    let mixes = walk.mixed()?;
    let outputs = walk.visible.into_iter().map(Entry::output).collect();
    Ok(Normalized { relational: walk.relational, outputs, mixes, changes: walk.changes })
}

/// A column that steps can see.
struct Entry {
    name: String,
    made: Made,
    step: Option<usize>,
    /// Which of the plan's mixes it is part of.
    mixed: Option<usize>,
}

enum Made {
    /// A column of the relational part, under the same name.
    Column(ColumnKind),
    /// A tensor, made from hidden columns.
    Tensor(OutputKind),
}

impl Entry {
    fn output(self) -> Output {
        let kind = match self.made {
            Made::Column(_) => OutputKind::Column { from: self.name.clone() },
            Made::Tensor(kind) => kind,
        };
        Output { name: self.name, kind, step: self.step }
    }

    /// The column that says which of its images are valid, where there is one.
    fn valid_column(&self) -> Option<String> {
        match &self.made {
            Made::Tensor(OutputKind::Image { spec, .. }) if spec.on_error == OnError::Null => {
                Some(valid_column(&self.name))
            }
            _ => None,
        }
    }

    fn is_column(&self) -> bool {
        matches!(self.made, Made::Column(_))
    }

    /// The columns of the relational part that it needs.
    fn needs(&self) -> Vec<String> {
        match &self.made {
            Made::Column(_) => vec![self.name.clone()],
            Made::Tensor(
                OutputKind::Column { from }
                | OutputKind::Image { from, .. }
                | OutputKind::Label { from, .. },
            ) => vec![from.clone()],
            Made::Tensor(OutputKind::Stack { from, .. }) => from.clone(),
        }
    }

    /// The names of its hidden columns, to be changed.
    fn hidden_mut(&mut self) -> &mut [String] {
        match &mut self.made {
            Made::Column(_) => &mut [],
            Made::Tensor(
                OutputKind::Column { from }
                | OutputKind::Image { from, .. }
                | OutputKind::Label { from, .. },
            ) => std::slice::from_mut(from),
            Made::Tensor(OutputKind::Stack { from, .. }) => from,
        }
    }
}

struct Walk<'p> {
    plan: &'p Plan,
    index: usize,
    visible: Vec<Entry>,
    relational: Vec<(usize, Step)>,
    changes: Vec<Change>,
    /// Names that a fresh name must not be.
    taken: HashSet<String>,
    operators: u32,
    mixes: Vec<mix::Mixing>,
    /// Whether an explode was passed.
    multiplied: bool,
}

impl<'p> Walk<'p> {
    fn new(plan: &'p Plan, source: &[(String, ColumnKind)]) -> Result<Self> {
        let mut seen = HashSet::with_capacity(source.len());
        for (name, _) in source {
            if !seen.insert(name.as_str()) {
                return Err(Error::new(
                    ErrorKind::Schema,
                    format!("the dataset has two columns named {name:?}"),
                )
                .at_place("source.parquet")
                .with_hint(
                    "rename one of them in the files: steps name columns, so names must differ",
                ));
            }
        }
        let Source::Parquet(parquet) = &plan.source;
        let entry = |(name, kind): &(String, ColumnKind)| Entry {
            name: name.clone(),
            made: Made::Column(*kind),
            step: None,
            mixed: None,
        };
        let visible = match &parquet.columns {
            None => source.iter().map(entry).collect(),
            Some(columns) => {
                let path = Path::root().key("source").key("parquet").key("columns");
                let find = |(i, name): (usize, &String)| {
                    source.iter().find(|(n, _)| n == name).map(entry).ok_or_else(|| {
                        wrong(
                            &path.index(i),
                            format!("the dataset has no column {name:?}"),
                            suggest::hint(name, source.iter().map(|(n, _)| n.as_str())),
                        )
                    })
                };
                columns.iter().enumerate().map(find).collect::<Result<Vec<_>>>()?
            }
        };
        let mut taken: HashSet<String> = source.iter().map(|(n, _)| n.clone()).collect();
        for step in &plan.steps {
            match step {
                Step::Rename(pairs) => taken.extend(pairs.iter().map(|(_, new)| new.clone())),
                Step::WithColumn { name, .. } => drop(taken.insert(name.clone())),
                Step::Stack { into, .. } => drop(taken.insert(into.clone())),
                _ => {}
            }
        }
        Ok(Self {
            plan,
            index: 0,
            visible,
            relational: Vec::new(),
            changes: Vec::new(),
            taken,
            operators: 0,
            mixes: Vec::new(),
            multiplied: false,
        })
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        let path = Path::step(self.index, step.name());
        match step {
            Step::Filter(expr) => {
                self.make_room(&[], Some(expr));
                self.emit(step.clone());
            }
            Step::Limit(_) => self.emit(step.clone()),
            Step::Explode(column) => self.explode(&path, column)?,
            Step::Select(names) => self.select(&path, names)?,
            Step::Drop(names) => self.drop_columns(&path, names)?,
            Step::Rename(pairs) => self.rename(&path, pairs)?,
            Step::WithColumn { name, expr } => self.with_column(name, expr),
            Step::MapImage(map) => self.map_image(&path, map)?,
            Step::MixImages(mix) => self.mix_images(&path, mix)?,
            Step::Stack { columns, into, dtype } => self.stack(&path, columns, into, *dtype)?,
        }
        Ok(())
    }

    /// The columns that say which images are valid must not meet others of their names.
    fn check_valid_columns(&self) -> Result<()> {
        let valid = self.visible.iter().filter_map(|e| Some((e, e.valid_column()?)));
        for (image, name) in valid {
            if self.visible.iter().any(|other| other.name == name) {
                let path = Path::step(image.step.unwrap_or(0), "map_image").key("on_error");
                return Err(wrong(
                    &path,
                    format!(
                        "there is a column {name:?}, the name under which null marks bad images"
                    ),
                    format!("rename or drop {name:?}, or rename {:?}", image.name),
                ));
            }
        }
        Ok(())
    }

    fn emit(&mut self, step: Step) {
        self.relational.push((self.index, step));
    }

    fn find(&self, path: &Path, name: &str) -> Result<usize> {
        self.visible.iter().position(|e| e.name == name).ok_or_else(|| {
            let image = self.visible.iter().find(|e| e.valid_column().as_deref() == Some(name));
            let hint = match (image, why_not(&self.changes, self.plan, self.index, name)) {
                (Some(image), _) => {
                    format!("it goes along with {:?}: name that alone", image.name)
                }
                (None, Some(why)) => why,
                (None, None) => suggest::hint(name, self.visible.iter().map(|e| e.name.as_str())),
            };
            wrong(path, format!("there is no column {name:?} here"), hint)
        })
    }

    fn find_all(&self, path: &Path, names: &[String]) -> Result<Vec<usize>> {
        names.iter().enumerate().map(|(i, name)| self.find(&path.index(i), name)).collect()
    }

    fn gone(&mut self, name: &str, why: Why) {
        self.changes.push(Change { step: self.index, name: name.to_owned(), why: Some(why) });
    }

    fn usable(&mut self, name: &str) {
        self.changes.push(Change { step: self.index, name: name.to_owned(), why: None });
    }

    /// Renames hidden columns that would be in the way of new columns or of an expression.
    fn make_room(&mut self, new: &[&str], expr: Option<&str>) {
        let mut moved = Vec::new();
        for entry in &mut self.visible {
            for hidden in entry.hidden_mut() {
                let in_the_way =
                    new.contains(&hidden.as_str()) || expr.is_some_and(|e| may_mention(e, hidden));
                if in_the_way {
                    let fresh = fresh_name(hidden, &self.taken, self.plan);
                    self.taken.insert(fresh.clone());
                    moved.push((std::mem::replace(hidden, fresh.clone()), fresh));
                }
            }
        }
        if !moved.is_empty() {
            self.emit(Step::Rename(moved));
        }
    }

    fn select(&mut self, path: &Path, names: &[String]) -> Result<()> {
        let mut keep = self.find_all(path, names)?.into_iter();
        let mut old: Vec<Option<Entry>> =
            std::mem::take(&mut self.visible).into_iter().map(Some).collect();
        let only_columns = old.iter().flatten().all(Entry::is_column);
        self.visible =
            keep.by_ref().filter_map(|i| old.get_mut(i).and_then(Option::take)).collect();
        let left: Vec<Entry> = old.into_iter().flatten().collect();
        for entry in &left {
            self.gone(&entry.name, Why::NotSelected);
        }
        if only_columns {
            self.emit(Step::Select(names.to_vec()));
        } else {
            self.forget(&left);
        }
        Ok(())
    }

    fn drop_columns(&mut self, path: &Path, names: &[String]) -> Result<()> {
        self.find_all(path, names)?;
        if names.len() == self.visible.len() {
            return Err(wrong(path, "no column would be left", "keep at least one column"));
        }
        let dropped: HashSet<&str> = names.iter().map(String::as_str).collect();
        let (left, kept) = std::mem::take(&mut self.visible)
            .into_iter()
            .partition(|e| dropped.contains(e.name.as_str()));
        self.visible = kept;
        for name in names {
            self.gone(name, Why::Dropped);
        }
        self.forget(&left);
        Ok(())
    }

    /// Drops what these needed in the relational part. Each hidden column belongs to one tensor, so
    /// nobody else needs it.
    fn forget(&mut self, left: &[Entry]) {
        let names: Vec<String> = left.iter().flat_map(Entry::needs).collect();
        if !names.is_empty() {
            self.emit(Step::Drop(names));
        }
    }

    fn rename(&mut self, path: &Path, pairs: &[(String, String)]) -> Result<()> {
        let mut at = Vec::with_capacity(pairs.len());
        for (old, _) in pairs {
            at.push(self.find(&path.key(old), old)?);
        }
        let renamed: HashSet<usize> = at.iter().copied().collect();
        let stay: HashSet<&str> = self
            .visible
            .iter()
            .enumerate()
            .filter(|(i, _)| !renamed.contains(i))
            .map(|(_, e)| e.name.as_str())
            .collect();
        for (old, new) in pairs {
            if stay.contains(new.as_str()) {
                return Err(wrong(
                    &path.key(old),
                    format!("there is a column {new:?} already"),
                    format!("choose another name, or drop {new:?} before"),
                ));
            }
        }
        let columns: Vec<(String, String)> = pairs
            .iter()
            .zip(&at)
            .filter(|((old, new), i)| {
                old != new && self.visible.get(**i).is_some_and(Entry::is_column)
            })
            .map(|(pair, _)| pair.clone())
            .collect();
        let news: Vec<&str> = columns.iter().map(|(_, new)| new.as_str()).collect();
        self.make_room(&news, None);
        for ((old, new), i) in pairs.iter().zip(&at) {
            if old != new {
                self.gone(old, Why::Renamed(new.clone()));
            }
            if let Some(entry) = self.visible.get_mut(*i) {
                entry.name.clone_from(new);
            }
        }
        for ((_, new), i) in pairs.iter().zip(at) {
            if self.visible.get(i).is_some_and(Entry::is_column) {
                self.usable(new);
            } else {
                self.gone(new, Why::Tensor);
            }
        }
        if !columns.is_empty() {
            self.emit(Step::Rename(columns));
        }
        Ok(())
    }

    fn with_column(&mut self, name: &str, expr: &str) {
        self.make_room(&[name], Some(expr));
        self.emit(Step::WithColumn { name: name.to_owned(), expr: expr.to_owned() });
        let entry = Entry {
            name: name.to_owned(),
            made: Made::Column(ColumnKind::Unknown),
            step: Some(self.index),
            mixed: None,
        };
        match self.visible.iter_mut().find(|e| e.name == name) {
            Some(old) => {
                let old = std::mem::replace(old, entry);
                if !old.is_column() {
                    self.forget(&[old]);
                }
            }
            None => self.visible.push(entry),
        }
        self.usable(name);
    }

    /// Whether it holds lists is for those to check who know the types.
    fn explode(&mut self, path: &Path, column: &str) -> Result<()> {
        let i = self.find(path, column)?;
        if !self.visible[i].is_column() {
            let held = self.visible[i].describe();
            return Err(wrong(
                path,
                format!("explode takes a column of lists, and {column:?} holds {held}"),
                "move the explode before the step that makes the tensor",
            ));
        }
        let between =
            |e: &Entry| matches!(e.made, Made::Tensor(OutputKind::Image { multiplied: true, .. }));
        if let Some(image) = self.visible.iter().find(|e| between(e)) {
            return Err(wrong(
                path,
                format!("the images {:?} are made between two explodes", image.name),
                "move map_image behind the last explode, or before the first",
            ));
        }
        self.visible[i].made = Made::Column(ColumnKind::Unknown);
        self.visible[i].step = Some(self.index);
        self.multiplied = true;
        self.emit(Step::Explode(column.to_owned()));
        Ok(())
    }

    fn map_image(&mut self, path: &Path, map: &MapImage) -> Result<()> {
        let path = path.key("column");
        let i = self.find(&path, &map.column)?;
        let hint = match &self.visible[i].made {
            Made::Column(ColumnKind::Binary | ColumnKind::Unknown) => None,
            Made::Column(ColumnKind::String) => Some(
                "store the images' bytes in a binary column; paths of image files are not followed"
                    .to_owned(),
            ),
            Made::Column(_) => Some(
                self.visible
                    .iter()
                    .find(|e| matches!(e.made, Made::Column(ColumnKind::Binary)))
                    .map_or("no column holds bytes here".to_owned(), |e| {
                        format!("the column {:?} holds bytes", e.name)
                    }),
            ),
            Made::Tensor(_) => Some("put all operators into the ops of one map_image".to_owned()),
        };
        if let Some(hint) = hint {
            let held = self.visible[i].describe();
            return Err(wrong(
                &path,
                format!("map_image reads encoded images, and {:?} holds {held}", map.column),
                hint,
            ));
        }
        let image = OutputKind::Image {
            from: map.column.clone(),
            spec: map.clone(),
            operator_base: self.operators,
            multiplied: self.multiplied,
        };
        self.operators =
            self.operators.saturating_add(u32::try_from(map.ops.len()).unwrap_or(u32::MAX));
        self.visible[i] = Entry {
            name: map.column.clone(),
            made: Made::Tensor(image),
            step: Some(self.index),
            mixed: None,
        };
        let why = if map.encoding().is_some() { Why::Encoded } else { Why::Tensor };
        self.gone(&map.column, why);
        Ok(())
    }

    fn stack(&mut self, path: &Path, columns: &[String], into: &str, dtype: DType) -> Result<()> {
        let list = path.key("columns");
        let at = self.find_all(&list, columns)?;
        for (k, i) in at.iter().enumerate() {
            let hint = match &self.visible[*i].made {
                Made::Column(ColumnKind::Number | ColumnKind::Bool | ColumnKind::Unknown) => {
                    continue;
                }
                Made::Column(ColumnKind::FixedList) => {
                    "fixed-size lists are dense tensors already; leave it out of the stack"
                }
                Made::Column(ColumnKind::List) => {
                    "lists are delivered on their own; see the loader's lists argument"
                }
                Made::Column(_) => {
                    "convert it with with_column and a SQL CAST, or leave it out of the stack"
                }
                Made::Tensor(_) => "it is a tensor already; leave it out of the stack",
            };
            let held = self.visible[*i].describe();
            return Err(wrong(
                &list.index(k),
                format!("a stack holds numbers, and {:?} holds {held}", columns[k]),
                hint,
            ));
        }
        if self.visible.iter().any(|e| e.name == into) && !columns.iter().any(|c| c == into) {
            return Err(wrong(
                &path.key("into"),
                format!("there is a column {into:?} already"),
                format!("choose another name, or drop {into:?} before"),
            ));
        }
        let tensor = OutputKind::Stack { from: columns.to_vec(), dtype };
        let entry = Entry {
            name: into.to_owned(),
            made: Made::Tensor(tensor),
            step: Some(self.index),
            mixed: None,
        };
        // The tensor takes the place of the first column that is listed.
        if let Some(first) = at.first() {
            self.visible[*first] = entry;
        }
        let rest: HashSet<usize> = at.into_iter().skip(1).collect();
        let mut i = 0;
        self.visible.retain(|_| {
            i += 1;
            !rest.contains(&(i - 1))
        });
        for column in columns {
            self.gone(column, Why::Stacked(into.to_owned()));
        }
        self.gone(into, Why::Tensor);
        Ok(())
    }
}

impl Entry {
    fn describe(&self) -> &'static str {
        match &self.made {
            Made::Column(kind) => kind.describe(),
            Made::Tensor(OutputKind::Image { spec, .. }) if spec.encoding().is_some() => {
                "images that are encoded again"
            }
            Made::Tensor(OutputKind::Image { .. }) => "images that are decoded already",
            Made::Tensor(OutputKind::Label { .. }) => "mixed labels",
            Made::Tensor(_) => "a tensor",
        }
    }
}

fn wrong(path: &Path, message: impl Into<String>, hint: impl Into<String>) -> Error {
    Origin::Plan.error(path, None, None, message, hint)
}

/// Whether an expression could mean a column. Sometimes wrong with "yes" (in a text literal), never
/// with "no": an identifier stands in the text letter by letter but for its case, and between
/// characters that no identifier has, unless it has a quote in it, which is doubled there.
fn may_mention(expr: &str, name: &str) -> bool {
    if name.contains(['"', '`', '\'']) {
        return true;
    }
    let (expr, name) = (expr.to_lowercase(), name.to_lowercase());
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    expr.match_indices(&name).any(|(at, _)| {
        let before = expr[..at].chars().next_back();
        let after = expr[at + name.len()..].chars().next();
        // A digit before may be the end of a number, with the identifier right behind it.
        let inside = before.is_some_and(|c| c.is_alphabetic() || c == '_')
            || after.is_some_and(|c| c.is_alphanumeric() || c == '_');
        !(plain && inside)
    })
}

/// A name that no column has, no step gives and no expression can mean.
fn fresh_name(name: &str, taken: &HashSet<String>, plan: &Plan) -> String {
    let base: String = name.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect();
    let used = |candidate: &str| {
        taken.contains(candidate)
            || plan.steps.iter().any(|step| match step {
                Step::Filter(expr) | Step::WithColumn { expr, .. } => may_mention(expr, candidate),
                _ => false,
            })
    };
    let mut n = 0usize;
    loop {
        let candidate = format!("__hidden_{n}_{base}");
        if !used(&candidate) {
            return candidate;
        }
        n += 1;
    }
}

#[cfg(test)]
mod tests;
