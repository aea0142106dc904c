//! Running a compiled segment over one batch.
//!
//! A batch passes its filters as a series of *levels*: level 0 is the batch as it came, and each
//! filter that drops rows makes the next. A column is brought to a level only when something at
//! that level reads it, in one step from level 0 wherever it came from there, so that a column
//! which only the result needs is filtered once, and one that nothing needs is never touched.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, UInt32Array, new_empty_array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{FilterBuilder, FilterPredicate, prep_null_mask_filter};
use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use forebay_core::{Error, ErrorKind, Result};

use crate::df::{ColumnarValue, DataFusionError, DfResult, PhysicalExpr, ScalarValue};
use crate::error::sentence;
use crate::float::canonical_nans;
use crate::relation::{Op, keep};

/// An expression with what it takes to evaluate it and to complain about it.
pub(crate) struct Evaluated {
    pub(crate) expr: Arc<dyn PhysicalExpr>,
    /// The slots that it reads, in the order of `schema`.
    pub(crate) inputs: Vec<usize>,
    pub(crate) schema: SchemaRef,
    /// The field of its result.
    pub(crate) field: FieldRef,
    /// The step, as errors name it.
    pub(crate) place: String,
    /// The expression, as errors name it.
    pub(crate) text: String,
    /// Whether a CAST in it was written by nobody: one side of an operator becomes the other's type.
    pub(crate) implied: bool,
}

/// What a segment made of a batch.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The columns of the result, for the rows that passed.
    pub batch: RecordBatch,
    /// The rows of the input that passed, ascending; a row that was multiplied is there as often as it
    /// gave a row. None: all of them, once.
    pub kept: Option<UInt32Array>,
    /// Where rows were multiplied: the index of each among those that its row became, before the filters
    /// behind.
    pub index: Option<UInt32Array>,
}

/// The program of one segment.
pub(crate) struct Program {
    ops: Vec<Op>,
    input: SchemaRef,
    input_slots: Vec<usize>,
    outputs: Vec<(FieldRef, usize)>,
    output: SchemaRef,
    slots: usize,
}

struct Level {
    rows: usize,
    /// Rows of level 0 that are left; None at level 0.
    kept: Option<UInt32Array>,
    /// The filter from the level before, and from level 0.
    step: Option<BooleanArray>,
    direct: Option<FilterPredicate>,
}

/// A column and the level that it is at.
#[derive(Clone)]
struct Held {
    array: ArrayRef,
    level: usize,
}

struct Frame {
    slots: Vec<Option<Held>>,
    levels: Vec<Level>,
}

impl Program {
    pub(crate) fn new(
        ops: Vec<Op>,
        inputs: Vec<(FieldRef, usize)>,
        outputs: Vec<(FieldRef, usize)>,
        metadata: std::collections::HashMap<String, String>,
    ) -> Self {
        let computed = ops
            .iter()
            .filter_map(|op| if let Op::Compute(slot, _) = op { Some(*slot) } else { None });
        let slots = inputs.iter().map(|(_, s)| *s).chain(computed).max().map_or(0, |s| s + 1);
        let (fields, input_slots): (Vec<FieldRef>, Vec<usize>) = inputs.into_iter().unzip();
        let output: Vec<FieldRef> = outputs.iter().map(|(f, _)| Arc::clone(f)).collect();
        Self {
            ops,
            input: Arc::new(Schema::new(fields)),
            input_slots,
            outputs,
            output: Arc::new(Schema::new_with_metadata(output, metadata)),
            slots,
        }
    }

    pub(crate) fn input_schema(&self) -> SchemaRef {
        Arc::clone(&self.input)
    }

    pub(crate) fn output_schema(&self) -> SchemaRef {
        Arc::clone(&self.output)
    }

    pub(crate) fn outputs(&self) -> &[(FieldRef, usize)] {
        &self.outputs
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    pub(crate) fn apply(&self, batch: &RecordBatch) -> Result<Applied> {
        let mut frame = Frame {
            slots: vec![None; self.slots],
            levels: vec![Level { rows: batch.num_rows(), kept: None, step: None, direct: None }],
        };
        for (i, (field, slot)) in self.input.fields().iter().zip(&self.input_slots).enumerate() {
            let array = column(batch, i, field)?;
            if let Some(place) = frame.slots.get_mut(*slot) {
                *place = Some(Held { array, level: 0 });
            }
        }
        for op in &self.ops {
            if frame.rows() == 0 {
                // Nothing is left to compute; the columns of an empty result are made below.
                break;
            }
            match op {
                Op::Filter(e) => frame.filter(e)?,
                Op::Compute(slot, e) => frame.compute(*slot, e)?,
                Op::Limit(_) | Op::Explode(_) => {
                    return Err(Error::internal("the end of a segment within it"));
                }
            }
        }
        let rows = frame.rows();
        let columns =
            self.outputs
                .iter()
                .map(|(field, slot)| {
                    if rows == 0 {
                        Ok(new_empty_array(field.data_type()))
                    } else {
                        frame.get(*slot)
                    }
                })
                .collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.output), columns, &options)
            .map_err(|e| {
                Error::new(ErrorKind::Schema, "the columns do not fit the schema of the dataset")
                    .with_source(e)
            })?;
        Ok(Applied { batch, kept: frame.levels.pop().and_then(|l| l.kept), index: None })
    }
}

/// The i-th expected column of a batch: usually at the same position, else by name.
fn column(batch: &RecordBatch, i: usize, field: &FieldRef) -> Result<ArrayRef> {
    let schema = batch.schema_ref();
    let at = match schema.fields().get(i) {
        Some(f) if f.name() == field.name() => Some(i),
        _ => schema.index_of(field.name()).ok(),
    };
    let Some(array) = at.and_then(|at| batch.columns().get(at)) else {
        return Err(
            Error::internal("a column is missing from a batch").in_column(field.name().as_str())
        );
    };
    if array.data_type() != field.data_type() {
        let message = format!(
            "the column is {} here and {} in the dataset",
            array.data_type(),
            field.data_type()
        );
        return Err(Error::new(ErrorKind::Schema, message).in_column(field.name().as_str()));
    }
    Ok(Arc::clone(array))
}

impl Frame {
    fn rows(&self) -> usize {
        self.levels.last().map_or(0, |l| l.rows)
    }

    /// The column of a slot, at the current level.
    fn get(&mut self, slot: usize) -> Result<ArrayRef> {
        let now = self.levels.len() - 1;
        let Some(held) = self.slots.get(slot).cloned().flatten() else {
            return Err(Error::internal("a column is read before it is computed"));
        };
        if held.level == now {
            return Ok(held.array);
        }
        let array = if held.level == 0 {
            self.direct(now)?.filter(&held.array).map_err(internal)?
        } else {
            let mut array = held.array;
            for level in self.levels.iter().skip(held.level + 1) {
                if let Some(mask) = &level.step {
                    array = arrow::compute::filter(&array, mask).map_err(internal)?;
                }
            }
            array
        };
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Some(Held { array: Arc::clone(&array), level: now });
        }
        Ok(array)
    }

    /// The filter from level 0 to a later one, made once.
    fn direct(&mut self, level: usize) -> Result<&FilterPredicate> {
        let rows = self.levels.first().map_or(0, |l| l.rows);
        let Some(target) = self.levels.get_mut(level) else {
            return Err(Error::internal("no such level"));
        };
        if target.direct.is_none() {
            let predicate = match (&target.step, &target.kept, level) {
                (Some(mask), _, 1) => FilterBuilder::new(mask).optimize().build(),
                (_, Some(kept), _) => {
                    let mut bits = vec![0u64; rows.div_ceil(64)];
                    for row in kept.values() {
                        if let Some(word) = bits.get_mut(*row as usize / 64) {
                            *word |= 1 << (row % 64);
                        }
                    }
                    let words: Vec<u64> = bits.into_iter().map(u64::to_le).collect();
                    let mask = BooleanBuffer::new(words.into(), 0, rows);
                    FilterBuilder::new(&BooleanArray::new(mask, None)).optimize().build()
                }
                _ => return Err(Error::internal("a level without a filter")),
            };
            target.direct = Some(predicate);
        }
        target.direct.as_ref().ok_or_else(|| Error::internal("no filter was made"))
    }

    fn evaluate(&mut self, e: &Evaluated) -> Result<ColumnarValue> {
        let columns = e.inputs.iter().map(|slot| self.get(*slot)).collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows()));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&e.schema), columns, &options)
            .map_err(|error| {
                Error::new(ErrorKind::Schema, "the columns do not fit the schema of the dataset")
                    .with_source(error)
            })?;
        e.expr.evaluate(&batch).map_err(|error| self.explain(e, &batch, error))
    }

    /// Why an expression could not be evaluated, and for which row of the batch.
    fn explain(&self, e: &Evaluated, batch: &RecordBatch, error: DataFusionError) -> Error {
        let (row, error) = match first_failing(&e.expr, batch) {
            Some((row, error)) => (Some(row), error),
            None => (None, error),
        };
        let kind = match error.find_root() {
            DataFusionError::NotImplemented(_) => ErrorKind::Unsupported,
            DataFusionError::Internal(_) => ErrorKind::Internal,
            _ => ErrorKind::Value,
        };
        let message = format!("cannot compute {}: {}", e.text, sentence(&error));
        let result = Error::new(kind, message).at_place(e.place.as_str());
        let hint = value_hint(result.message(), e.implied);
        let result = match hint.filter(|_| kind == ErrorKind::Value) {
            Some(hint) => result.with_hint(hint),
            None => result,
        };
        match row {
            Some(row) => {
                let kept = self.levels.last().and_then(|l| l.kept.as_ref());
                let row =
                    kept.and_then(|k| k.values().get(row)).map_or(row as u64, |r| u64::from(*r));
                result.at_row(row)
            }
            None => result,
        }
    }

    fn filter(&mut self, e: &Evaluated) -> Result<()> {
        let rows = self.rows();
        let mask = match self.evaluate(e)? {
            ColumnarValue::Scalar(ScalarValue::Boolean(Some(true))) => return Ok(()),
            ColumnarValue::Scalar(_) => BooleanArray::new(BooleanBuffer::new_unset(rows), None),
            ColumnarValue::Array(array) => {
                let mask = array.as_boolean_opt().ok_or_else(|| {
                    Error::internal(format!("a filter gave {}", array.data_type()))
                })?;
                if mask.null_count() > 0 { prep_null_mask_filter(mask) } else { mask.clone() }
            }
        };
        if mask.true_count() == rows {
            return Ok(());
        }
        let kept = match self.levels.last().and_then(|l| l.kept.as_ref()) {
            Some(before) => keep(before, &mask)?,
            None => mask.values().set_indices().map(|i| i as u32).collect(),
        };
        self.levels.push(Level {
            rows: kept.len(),
            kept: Some(kept),
            step: Some(mask),
            direct: None,
        });
        Ok(())
    }

    fn compute(&mut self, slot: usize, e: &Evaluated) -> Result<()> {
        let rows = self.rows();
        let array = self
            .evaluate(e)?
            .into_array(rows)
            .map_err(|error| Error::internal(sentence(&error)))?;
        if array.data_type() != e.field.data_type() {
            let message =
                format!("{} gave {} instead of {}", e.text, array.data_type(), e.field.data_type());
            return Err(Error::internal(message).at_place(e.place.as_str()));
        }
        let level = self.levels.len() - 1;
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Some(Held { array: canonical_nans(array), level });
        }
        Ok(())
    }
}

fn internal(error: arrow::error::ArrowError) -> Error {
    Error::internal(format!("cannot filter a column: {error}"))
}

/// The first row that fails, found by halving: about twice the work of one evaluation, and only
/// where that has failed already. None if every row passes on its own.
fn first_failing(
    expr: &Arc<dyn PhysicalExpr>,
    batch: &RecordBatch,
) -> Option<(usize, DataFusionError)> {
    let fails = |start: usize, len: usize| -> DfResult<()> {
        expr.evaluate(&batch.slice(start, len)).map(|_| ())
    };
    let (mut start, mut len) = (0, batch.num_rows());
    while len > 1 {
        let half = len / 2;
        if fails(start, half).is_err() {
            len = half;
        } else {
            start += half;
            len -= half;
        }
    }
    if len == 0 {
        return None;
    }
    fails(start, 1).err().map(|error| (start, error))
}

/// What helps against a value that cannot be computed with, by what arrow says of it.
fn value_hint(message: &str, implied: bool) -> Option<&'static str> {
    let lower = message.to_lowercase();
    if lower.contains("division by zero") || lower.contains("divide by zero") {
        Some("nullif(x, 0) turns a zero divisor into null")
    } else if lower.contains("overflow") {
        Some("compute in DOUBLE or DECIMAL: CAST(x AS DOUBLE), CAST(x AS DECIMAL(38, 0))")
    } else if lower.contains("cannot cast")
        || lower.contains("can't cast")
        || lower.contains("pars")
    {
        Some(if implied {
            "the two sides have different types, and one is converted; compare texts with texts ('5', not 5), \
             or write TRY_CAST(x AS BIGINT), which gives null where a text is no number"
        } else {
            "TRY_CAST gives null where CAST fails"
        })
    } else {
        None
    }
}
