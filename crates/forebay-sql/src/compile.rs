//! From steps to a program over slots: names are resolved, expressions planned, errors given their place.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef};
use forebay_core::{Error, ErrorKind, Result, suggest};
use forebay_plan::Step;

use crate::df::{ColumnName, Expr, Transformed, TreeNode};
use crate::error::at_spot;
use crate::eval::Evaluated;
use crate::explain::{self, StepText};
use crate::explode::element;
use crate::plan::{plan, type_name};
use crate::prune::Pruner;
use crate::relation::{Exploded, Op};

/// What the steps come to.
pub(crate) struct Compiled {
    /// The columns of the result, and their slots.
    pub(crate) outputs: Vec<(FieldRef, usize)>,
    pub(crate) ops: Vec<Op>,
    pub(crate) steps: Vec<StepText>,
    /// The filters that say something of rows of the source, in terms of its columns.
    pub(crate) prunable: Vec<Expr>,
}

impl Compiled {
    /// Compiles steps over the columns of `input`.
    pub(crate) fn new(input: &SchemaRef, steps: &[(usize, Step)]) -> Result<Self> {
        let mut compiler = Compiler::new(input)?;
        for (index, step) in steps {
            let place = format!("steps[{index}].{}", step.name());
            compiler.step(&place, step).map_err(|e| e.at_place(place.as_str()))?;
        }
        let Compiler { columns, ops, steps, prunable, .. } = compiler;
        let outputs = columns.into_iter().map(|c| (c.field, c.slot)).collect();
        Ok(Self { outputs, ops, steps, prunable })
    }
}

/// A column as a step sees it: a name, and the slot behind it.
#[derive(Clone)]
struct Visible {
    field: FieldRef,
    slot: usize,
}

struct Compiler {
    input: SchemaRef,
    columns: Vec<Visible>,
    /// For each slot its value over the input's columns, while that stays small.
    meaning: Vec<Option<Expr>>,
    ops: Vec<Op>,
    steps: Vec<StepText>,
    prunable: Vec<Expr>,
    /// Whether a limit or an explode was passed: filters behind it say nothing of rows of the source.
    sealed: bool,
}

/// Beyond this size the meaning of a computed column is not followed for pruning: statistics could
/// say nothing about it, and substitution may double it at every step.
const MEANING: usize = 64;

impl Compiler {
    fn new(input: &SchemaRef) -> Result<Self> {
        let mut seen = BTreeSet::new();
        for field in input.fields() {
            if !seen.insert(field.name().as_str()) {
                return Err(Error::new(
                    ErrorKind::Schema,
                    format!("the column {:?} is there twice", field.name()),
                )
                .in_column(field.name().as_str())
                .with_hint(
                    "columns are found by name; rename one of the two where the file is written",
                ));
            }
        }
        let columns = input
            .fields()
            .iter()
            .enumerate()
            .map(|(slot, f)| Visible { field: Arc::clone(f), slot })
            .collect();
        let meaning = input
            .fields()
            .iter()
            .map(|f| Some(Expr::Column(ColumnName::new_unqualified(f.name().as_str()))))
            .collect();
        Ok(Self {
            input: Arc::clone(input),
            columns,
            meaning,
            ops: Vec::new(),
            steps: Vec::new(),
            prunable: Vec::new(),
            sealed: false,
        })
    }

    fn step(&mut self, place: &str, step: &Step) -> Result<()> {
        match step {
            Step::Filter(sql) => self.filter(place, sql),
            Step::WithColumn { name, expr } => self.with_column(place, name, expr),
            Step::Select(names) => {
                self.unique(names)?;
                self.columns =
                    names.iter().map(|n| self.find(n).cloned()).collect::<Result<_>>()?;
                self.note(place, names.join(", "));
                Ok(())
            }
            Step::Drop(names) => {
                self.unique(names)?;
                for name in names {
                    self.find(name)?;
                }
                self.columns.retain(|c| !names.contains(c.field.name()));
                self.note(place, names.join(", "));
                Ok(())
            }
            Step::Rename(pairs) => self.rename(place, pairs),
            Step::Explode(name) => self.explode(place, name),
            Step::Limit(n) => {
                self.ops.push(Op::Limit(*n));
                self.sealed = true;
                self.note(place, n.to_string());
                Ok(())
            }
            other => Err(Error::internal(format!("{} is not a relational step", other.name()))),
        }
    }

    fn note(&mut self, place: &str, text: String) {
        self.steps.push(StepText { place: place.to_owned(), text, pruned_by: None });
    }

    fn find(&self, name: &str) -> Result<&Visible> {
        self.columns.iter().find(|c| c.field.name() == name).ok_or_else(|| {
            Error::invalid(format!("there is no column {name:?}")).with_hint(suggest::hint(
                name,
                self.columns.iter().map(|c| c.field.name().as_str()),
            ))
        })
    }

    fn unique(&self, names: &[String]) -> Result<()> {
        let mut seen = BTreeSet::new();
        match names.iter().find(|n| !seen.insert(n.as_str())) {
            Some(twice) => Err(Error::invalid(format!("the column {twice:?} is named twice"))),
            None => Ok(()),
        }
    }

    fn schema(&self) -> Schema {
        Schema::new(self.columns.iter().map(|c| Arc::clone(&c.field)).collect::<Vec<_>>())
    }

    /// An expression of the current step in terms of the input's columns, if that stays small.
    fn meaning_of(&self, expr: &Expr) -> Option<Expr> {
        let mut small = true;
        let inlined = expr
            .clone()
            .transform_up(|e| match &e {
                Expr::Column(c) => {
                    let slot =
                        self.columns.iter().find(|v| *v.field.name() == c.name).map(|v| v.slot);
                    match slot.and_then(|s| self.meaning.get(s)).cloned().flatten() {
                        Some(meaning) => Ok(Transformed::yes(meaning)),
                        None => {
                            small = false;
                            Ok(Transformed::no(e))
                        }
                    }
                }
                _ => Ok(Transformed::no(e)),
            })
            .ok()?
            .data;
        (small && crate::predicate::size(&inlined) <= MEANING).then_some(inlined)
    }

    fn evaluated(&self, place: &str, sql: &str) -> Result<(Evaluated, Expr, Vec<usize>)> {
        let planned = plan(sql, &self.schema())?;
        let slots =
            planned.inputs.iter().filter_map(|i| self.columns.get(*i)).map(|c| c.slot).collect();
        let text = explain::compiled(&planned.physical);
        let written = sql.contains("::") || sql.to_lowercase().contains("cast");
        let evaluated = Evaluated {
            implied: text.contains("CAST(") && !written,
            text,
            expr: planned.physical,
            inputs: slots,
            schema: planned.schema,
            field: planned.field,
            place: place.to_owned(),
        };
        Ok((evaluated, planned.logical, planned.inputs))
    }

    fn filter(&mut self, place: &str, sql: &str) -> Result<()> {
        let (evaluated, logical, _) = self.evaluated(place, sql)?;
        let dtype = evaluated.field.data_type();
        if *dtype != DataType::Boolean {
            let message = format!("the filter gives {}, not a boolean", type_name(dtype));
            let hint = match dtype {
                DataType::Null => {
                    "NULL is never true; a test for null is written x IS NULL".to_owned()
                }
                d if d.is_numeric() => {
                    format!("compare it with something, e.g. {} > 0", sql.trim())
                }
                _ => format!("compare it with something, e.g. {} IS NOT NULL", sql.trim()),
            };
            return Err(at_spot(ErrorKind::InvalidInput, message, sql, None).with_hint(hint));
        }
        self.note(place, evaluated.text.clone());
        if !self.sealed
            && let Some(meaning) = self.meaning_of(&logical)
        {
            if let Some(step) = self.steps.last_mut() {
                step.pruned_by =
                    Pruner::new(std::slice::from_ref(&meaning), &self.input).map(|p| p.to_string());
            }
            self.prunable.push(meaning);
        }
        self.ops.push(Op::Filter(Arc::new(evaluated)));
        Ok(())
    }

    fn with_column(&mut self, place: &str, name: &str, sql: &str) -> Result<()> {
        let (mut evaluated, logical, inputs) = self.evaluated(place, sql)?;
        self.note(place, format!("{name} = {}", evaluated.text));
        let column = match (&logical, inputs.as_slice()) {
            // A column under another name is the same slot, not a copy.
            (Expr::Column(_), [one]) => {
                let Some(source) = self.columns.get(*one) else {
                    return Err(Error::internal("a planned column is out of range"));
                };
                Visible {
                    field: Arc::new(source.field.as_ref().clone().with_name(name)),
                    slot: source.slot,
                }
            }
            _ => {
                let slot = self.meaning.len();
                let field = Arc::new(evaluated.field.as_ref().clone().with_name(name));
                evaluated.field = Arc::clone(&field);
                self.meaning.push(self.meaning_of(&logical));
                self.ops.push(Op::Compute(slot, Arc::new(evaluated)));
                Visible { field, slot }
            }
        };
        match self.columns.iter_mut().find(|c| c.field.name() == name) {
            Some(old) => *old = column,
            None => self.columns.push(column),
        }
        Ok(())
    }

    fn explode(&mut self, place: &str, name: &str) -> Result<()> {
        let column = self.find(name)?.clone();
        let dtype = column.field.data_type();
        let Some(item) = element(dtype) else {
            let lists: Vec<String> = self
                .columns
                .iter()
                .filter(|c| element(c.field.data_type()).is_some())
                .map(|c| format!("{:?}", c.field.name()))
                .collect();
            let hint = if lists.is_empty() {
                "no column holds lists here".to_owned()
            } else {
                format!("columns that hold lists: {}", lists.join(", "))
            };
            let message =
                format!("explode takes a column of lists, and {name:?} is {}", type_name(dtype));
            return Err(Error::new(ErrorKind::Schema, message).with_hint(hint));
        };
        let field = Arc::new(item.as_ref().clone().with_name(name));
        let slot = self.meaning.len();
        self.meaning.push(None);
        self.sealed = true;
        self.note(
            place,
            format!("{name}: a row for each of its elements ({})", type_name(item.data_type())),
        );
        self.ops.push(Op::Explode(Arc::new(Exploded {
            list: column.slot,
            slot,
            field: Arc::clone(&field),
            place: place.to_owned(),
        })));
        if let Some(old) = self.columns.iter_mut().find(|c| c.field.name() == name) {
            *old = Visible { field, slot };
        }
        Ok(())
    }

    fn rename(&mut self, place: &str, pairs: &[(String, String)]) -> Result<()> {
        self.unique(&pairs.iter().map(|(old, _)| old.clone()).collect::<Vec<_>>())?;
        for (old, _) in pairs {
            self.find(old)?;
        }
        let mut columns = self.columns.clone();
        for column in &mut columns {
            if let Some((_, new)) = pairs.iter().find(|(old, _)| old == column.field.name()) {
                column.field = Arc::new(column.field.as_ref().clone().with_name(new.as_str()));
            }
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = columns.iter().find(|c| !seen.insert(c.field.name().as_str())) {
            let name = twice.field.name();
            return Err(Error::invalid(format!(
                "after renaming, two columns would be called {name:?}"
            ))
            .with_hint(format!("drop or rename the other {name:?} first")));
        }
        self.columns = columns;
        self.note(
            place,
            pairs.iter().map(|(old, new)| format!("{old} to {new}")).collect::<Vec<_>>().join(", "),
        );
        Ok(())
    }
}

/// Runs the compiler on a thread with room for its recursion: the parser and the planner take tens
/// of kilobytes per level of an expression where they are not optimised, and the caller may be a
/// worker thread with a stack of 2 MiB. Pages of the stack that are not touched cost nothing.
pub(crate) fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    const STACK: usize = 64 << 20;
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("forebay-compile".to_owned())
            .stack_size(STACK)
            .spawn_scoped(scope, work)
            .map_err(|e| {
                Error::new(ErrorKind::Resource, "cannot start a thread to compile the steps")
                    .with_source(e)
            })?;
        thread.join().map_err(|_| Error::internal("the compiler of SQL expressions panicked"))
    })
}
