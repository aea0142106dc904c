//! A batch and its description: where in the shared memory its columns are.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Field, Schema};
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::writer::StreamWriter;
use forebay_core::{DType, Error, ErrorKind, Result};

use super::message::{Named, Tensor, Values};
use crate::{Batch, Column, Dense, Slab};

/// The columns of a batch as a message has them, and the slab that its tensors lie in. Arrow columns are
/// told by their place in [`arrow_columns`].
pub fn describe(batch: &Batch) -> Result<(Vec<Named>, Option<Slab>)> {
    let mut slab: Option<Slab> = None;
    let mut tensor = |dense: &Dense| -> Result<Tensor> {
        let known = slab.get_or_insert_with(|| dense.slab.clone());
        if known.as_ptr() != dense.slab.as_ptr() {
            return Err(Error::internal("a batch lies in two slabs"));
        }
        Ok(Tensor {
            dtype: dense.dtype.name().to_owned(),
            shape: dense.shape.iter().map(|n| *n as u64).collect(),
            offset: dense.offset as u64,
        })
    };
    let mut columns = Vec::with_capacity(batch.columns.len());
    let mut arrows = 0;
    for (name, column) in &batch.columns {
        let values = match column {
            Column::Dense(dense) => Values::Dense(tensor(dense)?),
            Column::Each(all) => Values::Each(all.iter().map(&mut tensor).collect::<Result<_>>()?),
            Column::Ragged { values, offsets } => {
                Values::Ragged { values: tensor(values)?, offsets: tensor(offsets)? }
            }
            Column::Arrow { .. } => {
                arrows += 1;
                Values::Arrow { index: arrows - 1 }
            }
        };
        columns.push(Named { name: name.to_string(), values });
    }
    Ok((columns, slab))
}

/// The Arrow columns of a batch as an IPC stream of one record batch; none where it has no such column.
pub fn arrow_columns(batch: &Batch) -> Result<Option<Vec<u8>>> {
    let mut fields = Vec::new();
    let mut arrays: Vec<ArrayRef> = Vec::new();
    for (name, column) in &batch.columns {
        if let Column::Arrow { values, field } = column {
            let field = Field::clone(field).with_name(name.to_string());
            // The type that comes is what counts, whatever was declared.
            fields.push(field.with_data_type(values.data_type().clone()).with_nullable(true));
            arrays.push(Arc::clone(values));
        }
    }
    if fields.is_empty() {
        return Ok(None);
    }
    let failed = |e| Error::internal("Arrow columns do not fit IPC").with_source(e);
    let schema = Arc::new(Schema::new(fields));
    let rows = RecordBatchOptions::new().with_row_count(Some(batch.rows));
    let record = RecordBatch::try_new_with_options(Arc::clone(&schema), arrays, &rows);
    let mut out = Vec::new();
    let mut writer = StreamWriter::try_new(&mut out, &schema).map_err(failed)?;
    writer.write(&record.map_err(failed)?).map_err(failed)?;
    writer.finish().map_err(failed)?;
    drop(writer);
    Ok(Some(out))
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the sidecar described a batch wrongly: {what}"))
        .with_hint("use the same version of Forebay on both sides")
}

/// The batch that a message describes, over the memory that came with it.
///
/// # Errors
/// Tensors that are not within the memory, unknown types, an Arrow stream that is none.
pub fn restore(rows: u64, columns: Vec<Named>, slabs: &[Slab]) -> Result<Batch> {
    let has_arrow = columns.iter().any(|c| matches!(c.values, Values::Arrow { .. }));
    let record = match (has_arrow, slabs.last()) {
        (false, _) => None,
        (true, None) => return Err(wrong("Arrow columns without memory")),
        (true, Some(slab)) => Some(read_arrow(slab)?),
    };
    let dense = |tensor: Tensor| -> Result<Dense> {
        let slab = slabs.first().ok_or_else(|| wrong("a tensor without memory"))?.clone();
        let dtype: DType = tensor.dtype.parse().map_err(|_| wrong("an unknown element type"))?;
        let shape = tensor.shape.iter().map(|n| usize::try_from(*n).ok());
        let shape: Vec<usize> = shape.collect::<Option<_>>().ok_or_else(|| wrong("a shape"))?;
        let bytes = shape.iter().try_fold(dtype.size(), |n, axis| n.checked_mul(*axis));
        let offset = usize::try_from(tensor.offset).ok();
        let end = offset.zip(bytes).and_then(|(offset, bytes)| offset.checked_add(bytes));
        let (Some(offset), Some(_)) = (offset, end.filter(|end| *end <= slab.len())) else {
            return Err(wrong("a tensor that is not within its memory"));
        };
        if offset % dtype.size() != 0 {
            return Err(wrong("a tensor that is not aligned"));
        }
        Ok(Dense { dtype, shape, offset, slab })
    };
    let mut out = Vec::with_capacity(columns.len());
    for Named { name, values } in columns {
        let column = match values {
            Values::Dense(tensor) => Column::Dense(dense(tensor)?),
            Values::Each(all) => Column::Each(all.into_iter().map(&dense).collect::<Result<_>>()?),
            Values::Ragged { values, offsets } => {
                Column::Ragged { values: dense(values)?, offsets: dense(offsets)? }
            }
            Values::Arrow { index } => {
                let record = record.as_ref().ok_or_else(|| wrong("Arrow columns"))?;
                let schema = record.schema_ref();
                let found = schema.fields().get(index).zip(record.columns().get(index));
                let (field, values) = found.ok_or_else(|| wrong("an Arrow column"))?;
                Column::Arrow { values: Arc::clone(values), field: Arc::clone(field) }
            }
        };
        out.push((name.into(), column));
    }
    let rows = usize::try_from(rows).map_err(|_| wrong("too many rows"))?;
    Ok(Batch { rows, columns: out })
}

/// The record batch of an IPC stream, without a copy of its values.
fn read_arrow(slab: &Slab) -> Result<RecordBatch> {
    let mut buffer = slab.to_buffer(0..slab.len())?;
    let broken = |e| wrong("Arrow columns that cannot be read").with_source(e);
    let mut decoder = StreamDecoder::new();
    let record = decoder.decode(&mut buffer).map_err(broken)?;
    record.ok_or_else(|| wrong("Arrow columns without rows"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use arrow::array::{AsArray, StringArray};
    use proptest::prelude::*;

    use super::*;
    use crate::SlabPool;

    fn slab(bytes: &[u8]) -> Slab {
        let mut w = SlabPool::new(1).take(bytes.len(), None).unwrap();
        w.region(0..bytes.len()).unwrap().copy_from_slice(bytes);
        w.freeze().unwrap()
    }

    /// Case T15: long strings through shared memory are never truncated.
    #[test]
    fn t15_long_strings_arrive_whole() {
        let long = "forebay".repeat(1 << 17);
        let strings: ArrayRef =
            Arc::new(StringArray::from(vec![Some("a"), None, Some(&long), Some("")]));
        let field = Arc::new(Field::new("text", strings.data_type().clone(), false));
        let bytes = slab(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let tensor = |shape: &[usize], offset| Dense {
            dtype: DType::UInt8,
            shape: shape.to_vec(),
            offset,
            slab: bytes.clone(),
        };
        let batch = Batch {
            rows: 4,
            columns: vec![
                ("x".into(), Column::Dense(tensor(&[4], 0))),
                ("text".into(), Column::Arrow { values: strings, field }),
                ("each".into(), Column::Each(vec![tensor(&[1, 2], 4), tensor(&[2], 6)])),
            ],
        };
        let (columns, found) = describe(&batch).unwrap();
        let stream = slab(&arrow_columns(&batch).unwrap().unwrap());
        let slabs = [found.unwrap(), stream.clone()];
        let again = restore(4, columns, &slabs).unwrap();
        let Some(Column::Arrow { values, .. }) = again.column("text") else { panic!() };
        let texts = values.as_string::<i32>();
        assert_eq!(texts.value(2), long);
        assert!(texts.is_null(1) && texts.value(3).is_empty());
        // Not a copy: the characters are where they came.
        let at = texts.value_data().as_ptr() as usize;
        let from = stream.as_ptr() as usize;
        assert!((from..from + stream.len()).contains(&at));
        let Some(Column::Each(all)) = again.column("each") else { panic!() };
        assert_eq!(all[1].bytes(), [7, 8]);
    }

    proptest! {
        /// Whatever a message says, a tensor is within its memory or refused.
        #[test]
        fn a_wrong_description_is_refused(
            shape in proptest::collection::vec(prop_oneof![0u64..5, Just(u64::MAX)], 0..4),
            offset in prop_oneof![0u64..20, Just(u64::MAX)],
            dtype in prop_oneof![Just("uint8"), Just("float32"), Just("nothing")],
        ) {
            let tensor = Tensor { dtype: dtype.into(), shape, offset };
            let columns = vec![Named { name: "x".into(), values: Values::Dense(tensor) }];
            if let Ok(batch) = restore(1, columns, &[slab(&[0; 16])]) {
                let Some(Column::Dense(dense)) = batch.column("x") else { panic!() };
                prop_assert!(dense.bytes().len() <= 16);
            }
        }
    }
}
