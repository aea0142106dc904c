//! Compiled relational steps.
//!
//! Compiling turns the steps into a short program over *slots*. A slot holds one column and is
//! written once: the columns of the input have the first slots, every computed column has a slot of
//! its own. `select`, `drop` and `rename` only change which slot goes by which name, so they cost
//! nothing per batch. Walking the program backwards from the columns of the result finds what is
//! really needed; what is not is neither read nor computed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::UInt32Array;
use arrow::compute::filter;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use forebay_core::{Error, Result};
use forebay_plan::Step;

use crate::compile::{Compiled, on_large_stack};
use crate::eval::{Applied, Evaluated, Program};
use crate::explain::StepText;
use crate::explode::Explode;
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
    /// Give a row for each element of a list.
    Explode(Arc<Exploded>),
}

/// A list that becomes rows.
pub(crate) struct Exploded {
    /// The slot of the list.
    pub(crate) list: usize,
    /// The slot of its elements.
    pub(crate) slot: usize,
    /// The field of the elements.
    pub(crate) field: FieldRef,
    /// The step, as errors name it.
    pub(crate) place: String,
}

/// What all relations derived from one compilation share.
struct Source {
    input: SchemaRef,
    /// The fields of the slots that are no columns of the input.
    computed: BTreeMap<usize, FieldRef>,
    steps: Vec<StepText>,
    /// The test on statistics of the filters before the first limit or explode.
    pruner: Option<Pruner>,
}

/// Compiled relational steps. Cheap to clone; `Send` and `Sync`.
///
/// A relation is a row of [`Segment`]s, each but the last ended by a limit or an explode. Inside a
/// segment every batch is independent of every other.
#[derive(Clone)]
pub struct Relation {
    source: Arc<Source>,
    ops: Arc<[Op]>,
    segments: Arc<[Segment]>,
}

/// A part of a relation in which every batch is independent; the limit applies to what it gives.
#[derive(Clone)]
pub struct Segment {
    program: Arc<Program>,
    explode: Option<Arc<Explode>>,
    limit: Option<u64>,
}

/// A relation, taken apart at its first explode; see [`Relation::split`].
pub struct Split {
    /// What comes before: rows of the source.
    pub rows: Relation,
    /// The explode and what comes behind, over the columns of `rows`: their items.
    pub items: Relation,
    /// The column of `rows` that is exploded.
    pub list: usize,
}

/// Compiles the steps without data and says what columns come out: plan validation in one call.
///
/// # Errors
/// As [`Relation::compile`].
pub fn check(input: &SchemaRef, steps: &[(usize, Step)]) -> Result<SchemaRef> {
    Relation::compile(input, steps).map(|r| r.schema())
}

impl Relation {
    /// Compiles `filter`, `select`, `drop`, `rename`, `with_column`, `explode` and `limit` steps over the
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
        let Compiled { outputs, ops, steps, prunable } = Compiled::new(input, steps)?;
        let computed = ops
            .iter()
            .filter_map(|op| match op {
                Op::Compute(slot, e) => Some((*slot, Arc::clone(&e.field))),
                Op::Explode(e) => Some((e.slot, Arc::clone(&e.field))),
                Op::Filter(_) | Op::Limit(_) => None,
            })
            .collect();
        let pruner = Pruner::new(&prunable, input);
        let source = Source { input: Arc::clone(input), computed, steps, pruner };
        Ok(Self::lower(Arc::new(source), &ops, &outputs, false))
    }

    /// Cuts the program at its limits and explodes, and keeps in each part what is needed behind it.
    /// `passed` says that it begins with what another program passes on.
    fn lower(source: Arc<Source>, ops: &[Op], outputs: &[(FieldRef, usize)], passed: bool) -> Self {
        let metadata = source.input.metadata().clone();
        let mut segments = Vec::new();
        let mut needed: BTreeSet<usize> = outputs.iter().map(|(_, slot)| *slot).collect();
        let mut outputs = outputs.to_vec();
        let mut part = Vec::new();
        let (mut explode, mut limit) = (None, None);
        let mut close = |part: &mut Vec<Op>,
                         inputs: Vec<(FieldRef, usize)>,
                         outputs: Vec<(FieldRef, usize)>,
                         explode,
                         limit| {
            part.reverse();
            let program = Program::new(std::mem::take(part), inputs, outputs, metadata.clone());
            segments.push(Segment { program: Arc::new(program), explode, limit });
        };
        for op in ops.iter().rev() {
            match op {
                Op::Limit(n) => {
                    let inputs = source.passed(&needed);
                    let outputs = std::mem::replace(&mut outputs, inputs.clone());
                    close(&mut part, inputs, outputs, explode.take(), limit.replace(*n));
                }
                Op::Explode(e) => {
                    let inputs = source.passed(&needed);
                    let before: BTreeSet<usize> =
                        needed.iter().copied().filter(|s| *s != e.slot).chain([e.list]).collect();
                    let schema = inputs.iter().map(|(f, _)| Arc::clone(f)).collect::<Vec<_>>();
                    let place = |slot: &usize| before.iter().position(|s| s == slot);
                    let step = Explode {
                        list: place(&e.list).unwrap_or(0),
                        columns: needed.iter().map(place).collect(),
                        schema: Arc::new(Schema::new(schema)),
                        place: e.place.clone(),
                    };
                    needed = before;
                    let outputs = std::mem::replace(&mut outputs, source.passed(&needed));
                    close(
                        &mut part,
                        inputs,
                        outputs,
                        explode.replace(Arc::new(step)),
                        limit.take(),
                    );
                }
                Op::Compute(slot, e) => {
                    if needed.remove(slot) {
                        needed.extend(e.inputs.iter().copied());
                        part.push(op.clone());
                    }
                }
                Op::Filter(e) => {
                    needed.extend(e.inputs.iter().copied());
                    part.push(op.clone());
                }
            }
        }
        let inputs = if passed {
            source.passed(&needed)
        } else {
            needed.iter().map(|s| (source.field_of(*s), *s)).collect()
        };
        close(&mut part, inputs, outputs, explode, limit);
        segments.reverse();
        Self { source, ops: ops.into(), segments: segments.into() }
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

    /// The segments, at least one. The last has no limit and no explode.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Whether a filter decides which rows pass.
    pub fn has_filter(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::Filter(_)))
    }

    /// Whether a limit decides which rows pass.
    pub fn has_limit(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::Limit(_)))
    }

    /// Whether a row may become several.
    pub fn multiplies(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::Explode(_)))
    }

    /// Whether every row passes and no column is computed.
    pub fn is_projection(&self) -> bool {
        self.segments.len() == 1 && self.segments.iter().all(|s| s.program.is_empty())
    }

    /// The part that decides which rows pass, with the columns that this needs and no columns in
    /// its result: a loader builds its row index from it. None if every row passes, once.
    pub fn row_filter(&self) -> Option<Self> {
        let decides = self.has_filter() || self.has_limit() || self.multiplies();
        decides.then(|| Self::lower(Arc::clone(&self.source), &self.ops, &[], false))
    }

    /// The part that computes the columns of the result, for rows that are known to pass.
    pub fn projection(&self) -> Self {
        let ops: Vec<Op> =
            self.ops.iter().filter(|op| matches!(op, Op::Compute(..))).cloned().collect();
        let outputs = self.segments.last().map_or_else(Vec::new, |s| s.program.outputs().to_vec());
        Self::lower(Arc::clone(&self.source), &ops, &outputs, false)
    }

    /// Takes the relation apart at its first explode, for a caller who reads rows in an order of its own
    /// and makes items of them piece by piece. None where no row is multiplied.
    pub fn split(&self) -> Option<Split> {
        let at = self.ops.iter().position(|op| matches!(op, Op::Explode(_)))?;
        let (before, behind) = self.ops.split_at(at);
        let outputs = self.segments.last().map_or_else(Vec::new, |s| s.program.outputs().to_vec());
        let items = Self::lower(Arc::clone(&self.source), behind, &outputs, true);
        let first = items.segments.first()?;
        let list = first.explode.as_ref()?.list;
        let between = first.program.outputs().to_vec();
        let rows = Self::lower(Arc::clone(&self.source), before, &between, false);
        Some(Split { rows, items, list })
    }

    /// Applies the relation to a batch that is independent of all others: there is no limit.
    ///
    /// # Errors
    /// As [`Segment::apply`].
    pub fn apply(&self, batch: &RecordBatch) -> Result<Applied> {
        self.cursor().push(batch)
    }

    /// The steps in words, in order.
    pub fn steps(&self) -> Vec<StepText> {
        self.source.steps.clone()
    }

    /// Applies the relation to batches in order, limits included.
    pub fn cursor(&self) -> Cursor {
        Cursor { left: self.segments.iter().map(|s| s.limit).collect(), relation: self.clone() }
    }

    /// The pruning predicate of the filters before the first limit or explode.
    pub(crate) fn pruner(&self) -> Option<&Pruner> {
        if self.has_filter() { self.source.pruner.as_ref() } else { None }
    }
}

impl Source {
    fn field_of(&self, slot: usize) -> FieldRef {
        match self.input.fields().get(slot) {
            Some(field) => Arc::clone(field),
            None => self
                .computed
                .get(&slot)
                .map_or_else(|| Arc::new(Field::new("", DataType::Null, true)), Arc::clone),
        }
    }

    /// Slots in a batch between two segments: named by number, for two may have had the same name in
    /// turn.
    fn passed(&self, slots: &BTreeSet<usize>) -> Vec<(FieldRef, usize)> {
        let field = |slot: &usize| {
            let named = self.field_of(*slot).as_ref().clone().with_name(format!("#{slot}"));
            (Arc::new(named), *slot)
        };
        slots.iter().map(field).collect()
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

    /// Whether the segment ends by multiplying rows.
    fn explodes(&self) -> bool {
        self.explode.is_some()
    }

    /// The schema of the batches that this segment expects.
    pub fn input_schema(&self) -> SchemaRef {
        self.program.input_schema()
    }

    /// The schema of the batches that this segment gives.
    pub fn schema(&self) -> SchemaRef {
        match &self.explode {
            Some(explode) => Arc::clone(&explode.schema),
            None => self.program.output_schema(),
        }
    }

    fn run(&self, batch: &RecordBatch) -> Result<Applied> {
        let mut applied = self.program.apply(batch)?;
        if let Some(explode) = &self.explode {
            let (items, rows) = explode
                .apply(&applied.batch)
                .map_err(|e| e.map_row(|row| kept_row(applied.kept.as_ref(), row)))?;
            applied.kept = Some(compose(applied.kept.as_ref(), rows));
            applied.batch = items;
        }
        Ok(applied)
    }

    /// Filters, computes and multiplies one batch. Columns are found by name; others may be present. The limit
    /// is the caller's to apply ([`Cursor`] does).
    ///
    /// # Errors
    /// A value that cannot be computed (overflow, division by zero, a failed cast), with the step's
    /// place and the first such row, counted within the batch: [`Error::map_row`] turns it into the
    /// row of the file.
    pub fn apply(&self, batch: &RecordBatch) -> Result<Applied> {
        let mut result = self.run(batch);
        // An expression fails at its first bad row, but one further on in the program may fail at
        // an earlier row: that one comes first however the rows are cut into batches.
        while let Err(error) = &result {
            let Some(before) = rows_before(error, batch) else { break };
            match self.run(&before) {
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
        let mut index: Option<UInt32Array> = None;
        for (segment, left) in self.relation.segments.iter().zip(&mut self.left) {
            let rows_in = batch.num_rows();
            let mut applied =
                segment.apply(&batch).map_err(|e| e.map_row(|row| kept_row(kept.as_ref(), row)))?;
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
            if let Some(now) = applied.kept {
                if !segment.explodes() {
                    index = index.map(|index| compose(Some(&index), now.clone()));
                }
                kept = Some(compose(kept.as_ref(), now));
            }
            if segment.explodes() {
                index = kept.as_ref().map(numbered);
            }
            batch = applied.batch;
        }
        Ok(Applied { batch, kept, index })
    }

    /// Whether a limit is used up: no further batch can give a row, so the upstream can stop.
    pub fn is_done(&self) -> bool {
        self.left.contains(&Some(0))
    }
}

/// The rows of a batch before the one that an error names.
fn rows_before(error: &Error, batch: &RecordBatch) -> Option<RecordBatch> {
    let row = usize::try_from(error.location().row?).ok()?;
    (row < batch.num_rows()).then(|| batch.slice(0, row))
}

/// What an earlier step made of the row that a later one names.
fn kept_row(kept: Option<&UInt32Array>, row: u64) -> u64 {
    let before = kept.and_then(|k| k.values().get(row as usize));
    before.map_or(row, |r| u64::from(*r))
}

/// Row numbers of a later step, as those of the rows before an earlier one.
fn compose(before: Option<&UInt32Array>, now: UInt32Array) -> UInt32Array {
    match before {
        None => now,
        Some(before) => {
            now.values().iter().filter_map(|i| before.values().get(*i as usize)).copied().collect()
        }
    }
}

/// For each row its number among its neighbours that come from the same one.
fn numbered(kept: &UInt32Array) -> UInt32Array {
    let mut last = None;
    let mut n = 0;
    let number = |row: &u32| {
        n = if last.replace(*row) == Some(*row) { n + 1 } else { 0 };
        n
    };
    kept.values().iter().map(number).collect()
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
