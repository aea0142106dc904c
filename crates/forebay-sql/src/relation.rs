//! Compiled relational steps.
//!
//! Compiling turns the steps into a short program over *slots*. A slot holds one column and is
//! written once: the columns of the input have the first slots, every computed column has a slot of
//! its own. `select`, `drop` and `rename` only change which slot goes by which name, so they cost
//! nothing per batch. Walking the program backwards from the columns of the result finds what is
//! really needed; what is not is neither read nor computed.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::UInt32Array;
use arrow::compute::filter;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use forebay_core::{Error, ErrorKind, Result, suggest};
use forebay_plan::Step;

use crate::df::{ColumnName, Expr, Transformed, TreeNode};
use crate::error::at_spot;
use crate::eval::{Applied, Evaluated, Program};
use crate::explain::{self, StepText};
use crate::plan::{plan, type_name};
use crate::prune::Pruner;

/// Steps of the program, in order.
#[derive(Clone)]
pub(crate) enum Op {
    /// Keep the rows for which the expression is true.
    Filter(Arc<Evaluated>),
    /// Write a slot.
    Compute(usize, Arc<Evaluated>),
    /// Keep the first rows of what arrives here.
    Limit(u64),
}

/// What all relations derived from one compilation share.
struct Source {
    input: SchemaRef,
    ops: Vec<Op>,
    steps: Vec<StepText>,
    /// The test on statistics of the filters before the first limit.
    pruner: Option<Pruner>,
}

/// Compiled relational steps. Cheap to clone; `Send` and `Sync`.
///
/// A relation is a row of [`Segment`]s, each but the last ended by a limit. Inside a segment every
/// batch is independent of every other.
#[derive(Clone)]
pub struct Relation {
    source: Arc<Source>,
    segments: Arc<[Segment]>,
    has_filter: bool,
    has_limit: bool,
}

/// A part of a relation in which every batch is independent; the limit applies to what it gives.
#[derive(Clone)]
pub struct Segment {
    program: Arc<Program>,
    limit: Option<u64>,
}

/// Compiles the steps without data and says what columns come out: plan validation in one call.
///
/// # Errors
/// As [`Relation::compile`].
pub fn check(input: &SchemaRef, steps: &[(usize, Step)]) -> Result<SchemaRef> {
    Relation::compile(input, steps).map(|r| r.schema())
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
    limited: bool,
}

/// Beyond this size the meaning of a computed column is not followed for pruning: statistics could
/// say nothing about it, and substitution may double it at every step.
const MEANING: usize = 64;

impl Relation {
    /// Compiles `filter`, `select`, `drop`, `rename`, `with_column` and `limit` steps over the
    /// columns of `input`. Each step comes with its index in the plan, which errors name.
    ///
    /// # Errors
    /// An unknown column or function, a syntax error, types that do not fit, a filter that is not
    /// boolean, a function whose result would differ between runs: each with the step's place, and
    /// a caret under the word where there is one. Other steps are refused.
    pub fn compile(input: &SchemaRef, steps: &[(usize, Step)]) -> Result<Self> {
        on_large_stack(|| Self::compile_here(input, steps))?
    }

    fn compile_here(input: &SchemaRef, steps: &[(usize, Step)]) -> Result<Self> {
        let mut compiler = Compiler::new(input)?;
        for (index, step) in steps {
            let place = format!("steps[{index}].{}", step.name());
            compiler.step(&place, step).map_err(|e| e.at_place(place.as_str()))?;
        }
        let Compiler { columns, ops, steps, prunable, .. } = compiler;
        let outputs: Vec<(FieldRef, usize)> =
            columns.into_iter().map(|c| (c.field, c.slot)).collect();
        let pruner = Pruner::new(&prunable, input);
        let source = Source { input: Arc::clone(input), ops, steps, pruner };
        let ops = source.ops.clone();
        Ok(Self::lower(Arc::new(source), ops, &outputs))
    }

    /// Cuts the program at its limits and keeps in each part what is needed behind it.
    fn lower(source: Arc<Source>, ops: Vec<Op>, outputs: &[(FieldRef, usize)]) -> Self {
        let has_filter = ops.iter().any(|op| matches!(op, Op::Filter(_)));
        let has_limit = ops.iter().any(|op| matches!(op, Op::Limit(_)));
        let width = source.input.fields().len();
        let mut segments = Vec::new();
        let mut needed: BTreeSet<usize> = outputs.iter().map(|(_, slot)| *slot).collect();
        let mut outputs = outputs.to_vec();
        let mut limit = None;
        let mut part = Vec::new();
        let metadata = source.input.metadata().clone();
        // The name and type of a slot within a batch that passes from one segment to the next.
        let field_of = |slot: usize| -> FieldRef {
            if slot < width {
                return Arc::new(source.input.field(slot).clone());
            }
            let computed = source.ops.iter().find_map(|op| match op {
                Op::Compute(s, e) if *s == slot => Some(Arc::clone(&e.field)),
                _ => None,
            });
            computed.unwrap_or_else(|| Arc::new(Field::new("", DataType::Null, true)))
        };
        // Slots between segments are named by number: two may have had the same name in turn.
        let passed = |slots: &BTreeSet<usize>| -> Vec<(FieldRef, usize)> {
            slots
                .iter()
                .map(|s| (Arc::new(field_of(*s).as_ref().clone().with_name(format!("#{s}"))), *s))
                .collect()
        };
        let mut close = |part: &mut Vec<Op>,
                         inputs: Vec<(FieldRef, usize)>,
                         outputs: Vec<(FieldRef, usize)>,
                         limit| {
            part.reverse();
            let program = Program::new(std::mem::take(part), inputs, outputs, metadata.clone());
            segments.push(Segment { program: Arc::new(program), limit });
        };
        for op in ops.into_iter().rev() {
            match op {
                Op::Limit(n) => {
                    let inputs = passed(&needed);
                    close(
                        &mut part,
                        inputs.clone(),
                        std::mem::replace(&mut outputs, inputs),
                        limit,
                    );
                    limit = Some(n);
                }
                Op::Compute(slot, e) => {
                    if needed.remove(&slot) {
                        needed.extend(e.inputs.iter().copied());
                        part.push(Op::Compute(slot, e));
                    }
                }
                Op::Filter(e) => {
                    needed.extend(e.inputs.iter().copied());
                    part.push(Op::Filter(e));
                }
            }
        }
        let inputs = needed.iter().map(|s| (field_of(*s), *s)).collect();
        close(&mut part, inputs, outputs, limit);
        segments.reverse();
        Self { source, segments: segments.into(), has_filter, has_limit }
    }

    /// The columns of the input that are really needed, in the input's order. If none is needed,
    /// none: the batches are then rows without columns.
    pub fn input_columns(&self) -> Vec<String> {
        self.input_schema().fields().iter().map(|f| f.name().clone()).collect()
    }

    /// The schema of the batches that the first segment expects: [`Relation::input_columns`].
    pub fn input_schema(&self) -> SchemaRef {
        self.segments.first().map_or_else(|| Arc::new(Schema::empty()), Segment::input_schema)
    }

    /// The schema of the result.
    pub fn schema(&self) -> SchemaRef {
        self.segments.last().map_or_else(|| Arc::new(Schema::empty()), Segment::schema)
    }

    /// The segments, at least one. The last has no limit.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Whether a filter decides which rows pass.
    pub fn has_filter(&self) -> bool {
        self.has_filter
    }

    /// Whether a limit decides which rows pass.
    pub fn has_limit(&self) -> bool {
        self.has_limit
    }

    /// Whether every row passes and no column is computed.
    pub fn is_projection(&self) -> bool {
        self.segments.len() == 1 && self.segments.iter().all(|s| s.program.is_empty())
    }

    /// The part that decides which rows pass, with the columns that this needs and no columns in
    /// its result: a loader builds its row index from it. None if every row passes.
    pub fn row_filter(&self) -> Option<Self> {
        if !self.has_filter && !self.has_limit {
            return None;
        }
        Some(Self::lower(Arc::clone(&self.source), self.source.ops.clone(), &[]))
    }

    /// The part that computes the columns of the result, for rows that are known to pass.
    pub fn projection(&self) -> Self {
        let ops =
            self.source.ops.iter().filter(|op| matches!(op, Op::Compute(..))).cloned().collect();
        let outputs = self.segments.last().map_or_else(Vec::new, |s| s.program.outputs().to_vec());
        Self::lower(Arc::clone(&self.source), ops, &outputs)
    }

    /// The steps in words, in order.
    pub fn steps(&self) -> Vec<StepText> {
        self.source.steps.clone()
    }

    /// Applies the relation to batches in order, limits included.
    pub fn cursor(&self) -> Cursor {
        Cursor { left: self.segments.iter().map(|s| s.limit).collect(), relation: self.clone() }
    }

    /// The pruning predicate of the filters before the first limit.
    pub(crate) fn pruner(&self) -> Option<&Pruner> {
        if self.has_filter { self.source.pruner.as_ref() } else { None }
    }
}

impl std::fmt::Debug for Relation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.source.steps.iter().map(ToString::to_string)).finish()
    }
}

impl Segment {
    /// How many rows of what this segment gives go on, over all batches together.
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// The schema of the batches that this segment expects.
    pub fn input_schema(&self) -> SchemaRef {
        self.program.input_schema()
    }

    /// The schema of the batches that this segment gives.
    pub fn schema(&self) -> SchemaRef {
        self.program.output_schema()
    }

    /// Filters and computes one batch. Columns are found by name; others may be present. The limit
    /// is the caller's to apply ([`Cursor`] does).
    ///
    /// # Errors
    /// A value that cannot be computed (overflow, division by zero, a failed cast), with the step's
    /// place and the first such row, counted within the batch: [`Error::map_row`] turns it into the
    /// row of the file.
    pub fn apply(&self, batch: &RecordBatch) -> Result<Applied> {
        let mut result = self.program.apply(batch);
        // An expression fails at its first bad row, but one further on in the program may fail at
        // an earlier row: that one comes first however the rows are cut into batches.
        while let Err(error) = &result {
            let Some(before) = rows_before(error, batch) else { break };
            match self.program.apply(&before) {
                Ok(_) => break,
                earlier => result = earlier,
            }
        }
        result
    }
}

/// Applies a relation to batches in order.
pub struct Cursor {
    relation: Relation,
    /// Rows that may still leave each segment.
    left: Vec<Option<u64>>,
}

impl Cursor {
    /// Applies the relation to the next batch.
    ///
    /// # Errors
    /// As [`Segment::apply`]. A row behind the last one that a limit lets through is no error, even
    /// where it sits in the same batch.
    pub fn push(&mut self, batch: &RecordBatch) -> Result<Applied> {
        let left = self.left.clone();
        let mut result = self.run(batch);
        while let Err(error) = &result {
            let Some(before) = rows_before(error, batch) else { break };
            self.left.clone_from(&left);
            match self.run(&before) {
                Ok(mut applied) if self.is_done() => {
                    // All rows of a part are not all rows of the batch.
                    applied.kept.get_or_insert_with(|| {
                        UInt32Array::from_iter_values(0..before.num_rows() as u32)
                    });
                    return Ok(applied);
                }
                Ok(_) => break,
                earlier => result = earlier,
            }
        }
        result
    }

    fn run(&mut self, batch: &RecordBatch) -> Result<Applied> {
        let mut batch = batch.clone();
        let mut kept: Option<UInt32Array> = None;
        for (segment, left) in self.relation.segments.iter().zip(&mut self.left) {
            let rows_in = batch.num_rows();
            let mut applied = segment.apply(&batch).map_err(|e| {
                e.map_row(|row| {
                    let before = kept.as_ref().and_then(|k| k.values().get(row as usize));
                    before.map_or(row, |r| u64::from(*r))
                })
            })?;
            if let Some(n) = left {
                let rows = applied.batch.num_rows() as u64;
                if rows > *n {
                    let n = *n as usize;
                    applied.batch = applied.batch.slice(0, n);
                    let all = applied.kept;
                    let all =
                        all.unwrap_or_else(|| UInt32Array::from_iter_values(0..rows_in as u32));
                    applied.kept = Some(all.slice(0, n));
                }
                *n -= rows.min(*n);
            }
            kept = match (kept, applied.kept) {
                (before, None) => before,
                (None, now) => now,
                (Some(before), Some(now)) => Some(
                    now.values()
                        .iter()
                        .filter_map(|i| before.values().get(*i as usize))
                        .copied()
                        .collect(),
                ),
            };
            batch = applied.batch;
        }
        Ok(Applied { batch, kept })
    }

    /// Whether a limit is used up: no further batch can give a row, so the upstream can stop.
    pub fn is_done(&self) -> bool {
        self.left.contains(&Some(0))
    }
}

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
            limited: false,
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
            Step::Limit(n) => {
                self.ops.push(Op::Limit(*n));
                self.limited = true;
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
        let evaluated = Evaluated {
            text: explain::compiled(&planned.physical),
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
        if !self.limited
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
fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
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

/// The rows of a batch before the one that an error names.
fn rows_before(error: &Error, batch: &RecordBatch) -> Option<RecordBatch> {
    let row = usize::try_from(error.location().row?).ok()?;
    (row < batch.num_rows()).then(|| batch.slice(0, row))
}

/// Filters an array of row numbers by a mask of the same length.
pub(crate) fn keep(rows: &UInt32Array, mask: &arrow::array::BooleanArray) -> Result<UInt32Array> {
    let kept: arrow::array::ArrayRef =
        filter(rows, mask).map_err(|e| Error::internal(e.to_string()))?;
    kept.as_any()
        .downcast_ref::<UInt32Array>()
        .cloned()
        .ok_or_else(|| Error::internal("filtering row numbers changed their type"))
}
