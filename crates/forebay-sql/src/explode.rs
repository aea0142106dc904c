//! One row for each element of a list, the other columns repeated.
//!
//! As SQL's `UNNEST`: a list that is null or empty gives no row, and an element that is null gives a
//! row with a null.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use forebay_core::{Error, ErrorKind, Result};

/// Multiplies the rows of a batch.
pub(crate) struct Explode {
    /// The list, by its place in the batch that comes in.
    pub(crate) list: usize,
    /// Where each column of the result comes from; none for the elements.
    pub(crate) columns: Vec<Option<usize>>,
    /// The schema of the result.
    pub(crate) schema: SchemaRef,
    /// The step, as errors name it.
    pub(crate) place: String,
}

/// The field of a list's elements.
pub(crate) fn element(list: &DataType) -> Option<&FieldRef> {
    match list {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            Some(item)
        }
        _ => None,
    }
}

/// How many elements the list of a row has; none for a null.
pub fn elements(list: &dyn Array, row: usize) -> usize {
    range(list, row).len()
}

/// Where the elements of a row stand among the values.
fn range(list: &dyn Array, row: usize) -> std::ops::Range<usize> {
    if list.is_null(row) {
        return 0..0;
    }
    let between = |offsets: (usize, usize)| offsets.0..offsets.1;
    if let Some(lists) = list.as_list_opt::<i32>() {
        let o = lists.value_offsets();
        return between((o[row] as usize, o[row + 1] as usize));
    }
    if let Some(lists) = list.as_list_opt::<i64>() {
        let o = lists.value_offsets();
        return between((o[row] as usize, o[row + 1] as usize));
    }
    list.as_fixed_size_list_opt().map_or(0..0, |lists| {
        let (first, n) = (lists.value_offset(row) as usize, lists.value_length() as usize);
        first..first + n
    })
}

/// The elements of all lists of an array, one behind the other, nulls' included.
fn values(list: &dyn Array) -> Result<&ArrayRef> {
    let values = list
        .as_list_opt::<i32>()
        .map(|l| l.values())
        .or_else(|| list.as_list_opt::<i64>().map(|l| l.values()))
        .or_else(|| list.as_fixed_size_list_opt().map(|l| l.values()));
    values.ok_or_else(|| Error::internal(format!("{} is exploded", list.data_type())))
}

impl Explode {
    /// The rows of the result, and for each of them the row that it comes from.
    pub(crate) fn apply(&self, batch: &RecordBatch) -> Result<(RecordBatch, UInt32Array)> {
        let list = batch
            .columns()
            .get(self.list)
            .ok_or_else(|| Error::internal("the column to explode is missing"))?;
        let mut rows = Vec::new();
        let mut places: Vec<u64> = Vec::new();
        let mut next = None;
        let mut adjoining = true;
        for row in 0..list.len() {
            let range = range(list, row);
            if range.is_empty() {
                continue;
            }
            adjoining &= next.is_none_or(|n| n == range.start);
            next = Some(range.end);
            if u32::try_from(rows.len() + range.len()).is_err() {
                return Err(self.too_many(None).at_row(row as u64));
            }
            rows.extend(std::iter::repeat_n(row as u32, range.len()));
            places.extend(range.map(|i| i as u64));
        }
        let rows = UInt32Array::from(rows);
        let elements = match (places.first(), adjoining) {
            // Without gaps they are there already.
            (Some(first), true) => values(list)?.slice(*first as usize, places.len()),
            _ => take(values(list)?, &arrow::array::UInt64Array::from(places), None)
                .map_err(|e| self.too_many(Some(e)))?,
        };
        let column = |from: &Option<usize>| match from {
            None => Ok(Arc::clone(&elements)),
            Some(i) => take(batch.column(*i), &rows, None).map_err(|e| self.too_many(Some(e))),
        };
        let columns = self.columns.iter().map(column).collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
            .map_err(|e| {
                Error::new(ErrorKind::Schema, "the elements do not fit the schema of the dataset")
                    .at_place(self.place.as_str())
                    .with_source(e)
            })?;
        Ok((batch, rows))
    }

    fn too_many(&self, cause: Option<ArrowError>) -> Error {
        let error = Error::new(ErrorKind::Resource, "the rows of one block become too many or too large")
            .at_place(self.place.as_str())
            .with_hint("leave out columns that are not needed with drop() before the explode, or write smaller row groups");
        match cause {
            Some(cause) => error.with_source(cause),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::array::{FixedSizeListArray, Int32Array, LargeListArray, ListArray};
    use arrow::buffer::{NullBuffer, OffsetBuffer};
    use arrow::datatypes::{Field, Int32Type, Schema};

    use super::*;

    type Lists = Vec<Option<Vec<Option<i32>>>>;

    fn exploded(list: ArrayRef) -> (Vec<Option<i32>>, Vec<i32>) {
        let ids: ArrayRef = Arc::new(Int32Array::from_iter_values(0..list.len() as i32));
        let field = element(list.data_type()).unwrap().as_ref().clone().with_name("x");
        let input = Schema::new(vec![
            Field::new("id", DataType::Int32, false),
            Field::new("x", list.data_type().clone(), true),
        ]);
        let output = Schema::new(vec![field, Field::new("id", DataType::Int32, false)]);
        let explode = Explode {
            list: 1,
            columns: vec![None, Some(0)],
            schema: Arc::new(output),
            place: "steps[0].explode".into(),
        };
        let batch = RecordBatch::try_new(Arc::new(input), vec![ids, list]).unwrap();
        let (out, rows) = explode.apply(&batch).unwrap();
        let elements = out.column(0).as_primitive::<Int32Type>().iter().collect();
        let ids = out.column(1).as_primitive::<Int32Type>().values().to_vec();
        assert_eq!(ids, rows.values().iter().map(|r| *r as i32).collect::<Vec<_>>());
        (elements, ids)
    }

    fn expected(lists: &Lists) -> (Vec<Option<i32>>, Vec<i32>) {
        let pairs = (0..).zip(lists);
        let each = |(row, list): (i32, &Option<Vec<Option<i32>>>)| {
            list.clone().unwrap_or_default().into_iter().map(move |x| (x, row))
        };
        pairs.flat_map(each).unzip()
    }

    #[test]
    fn every_kind_of_list_gives_its_elements() {
        let lists: Lists = vec![
            Some(vec![Some(1), None]),
            Some(vec![]),
            None,
            Some(vec![Some(4), Some(5), Some(6)]),
            Some(vec![None]),
        ];
        let small = ListArray::from_iter_primitive::<Int32Type, _, _>(lists.clone());
        let large = LargeListArray::from_iter_primitive::<Int32Type, _, _>(lists.clone());
        assert_eq!(exploded(Arc::new(small.clone())), expected(&lists));
        assert_eq!(exploded(Arc::new(large)), expected(&lists));
        // A slice begins in the middle of the values.
        let tail = lists[3..].to_vec();
        assert_eq!(exploded(Arc::new(small.slice(3, 2))), expected(&tail));
        let fixed: Lists = vec![Some(vec![Some(1), Some(2)]), None, Some(vec![None, Some(3)])];
        let array = FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(fixed.clone(), 2);
        assert_eq!(exploded(Arc::new(array)), expected(&fixed));
        assert_eq!(exploded(Arc::new(small.slice(1, 2))), (vec![], vec![]));
    }

    #[test]
    fn a_null_that_hides_elements_gives_none() {
        let item = Arc::new(Field::new("item", DataType::Int32, true));
        let offsets = OffsetBuffer::from_lengths([2, 3, 1]);
        let values = Arc::new(Int32Array::from_iter_values(0..6));
        let nulls = NullBuffer::from(vec![true, false, true]);
        let list = ListArray::new(item, offsets, values, Some(nulls));
        assert_eq!(exploded(Arc::new(list)), (vec![Some(0), Some(1), Some(5)], vec![0, 0, 2]));
    }
}
