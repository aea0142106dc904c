//! List columns of a batch: dense where all lists have one length, ragged or padded by choice.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, new_empty_array};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::Field;
use forebay_core::suggest::{in_python, in_sql, not_null, sql_in_python};
use forebay_core::{DType, Error, ErrorKind, Result};
use forebay_plan::{Fill, Lists};

use crate::outputs::ListSpec;
use crate::part::fill_bytes;
use crate::rows::Rows;

/// Where the elements of a batch's lists go.
pub struct ListLayout {
    /// Element type.
    pub dtype: DType,
    /// Shape of the values tensor.
    pub shape: Vec<usize>,
    /// For ragged columns: rows + 1 positions.
    pub offsets: Option<Vec<i64>>,
    values: ArrayRef,
    /// Range of each list in `values`.
    ranges: Vec<(usize, usize)>,
    /// Elements a row takes in the tensor (dense and padded).
    width: usize,
    fill: [u8; 8],
}

/// An empty list array, for a batch without rows.
pub fn empty(dtype: DType) -> Result<ArrayRef> {
    let element = forebay_feed::batch::arrow_type(dtype)?;
    let field = Arc::new(Field::new("item", element.clone(), true));
    Ok(Arc::new(ListArray::new(field, OffsetBuffer::new_empty(), new_empty_array(&element), None)))
}

/// Decides the layout; an error where the lists do not fit the choice.
pub fn layout(spec: &ListSpec, name: &str, array: &ArrayRef, rows: &Rows) -> Result<ListLayout> {
    let (values, ranges) = ranges(array)?;
    let located = |error: Error, i: usize| match rows.samples().nth(i) {
        Some((part, row)) => part.locate(error.in_column(name), row),
        None => error.in_column(name),
    };
    if let Some(i) = (0..array.len()).find(|i| array.is_null(*i)) {
        let error = Error::new(ErrorKind::Schema, "a null list cannot go into a tensor")
            .with_hint(format!("leave such rows out with {}", not_null(name)));
        return Err(located(error, i));
    }
    let fill = fill_bytes(spec.dtype, spec.fill.unwrap_or(Fill::Int(0))).ok_or_else(|| {
        Error::invalid(format!("the fill value does not fit elements of {}", spec.dtype))
            .at_place("loader(fill=...)")
            .in_column(name)
    })?;
    if values.null_count() > 0 && spec.fill.is_none() {
        let bad = |(at, end): &(usize, usize)| (*at..*end).any(|v| values.is_null(v));
        if let Some(i) = ranges.iter().position(bad) {
            let error =
                Error::new(ErrorKind::Schema, "a null within a list cannot go into a tensor")
                    .with_hint(format!(
                        "fill nulls with fill={{{}: 0}} in loader()",
                        in_python(name)
                    ));
            return Err(located(error, i));
        }
    }
    let lengths = || ranges.iter().map(|(at, end)| end - at);
    let total: usize = lengths().sum();
    let (shape, offsets, width) = match spec.lists {
        Lists::Ragged => {
            let mut offsets = vec![0i64];
            let mut at = 0;
            for n in lengths() {
                at += n as i64;
                offsets.push(at);
            }
            (vec![total], Some(offsets), 0)
        }
        Lists::Pad => {
            let longest = lengths().max().unwrap_or(0);
            (vec![array.len(), longest], None, longest)
        }
        Lists::Error => {
            let first = lengths().next();
            let n = match (spec.length.get(), first) {
                (Some(n), _) => *n,
                (None, Some(first)) => *spec.length.get_or_init(|| Box::new(first)),
                (None, None) => 0,
            };
            if let Some((i, other)) = lengths().enumerate().find(|(_, m)| *m != n) {
                let quoted = in_python(name);
                let error = Error::new(
                    ErrorKind::Schema,
                    format!("lists of shapes [{n}] and [{other}] do not fit one dense tensor"),
                )
                .with_hint(format!(
                    "choose lists={{{quoted}: \"pad\"}} (filled up to the longest of the batch) or \
                     lists={{{quoted}: \"ragged\"}} (values and offsets) in loader(); or bucket: keep \
                     one length with filter({})",
                    sql_in_python(&format!("cardinality({}) = {n}", in_sql(name)))
                ));
                return Err(located(error, i));
            }
            (vec![array.len(), n], None, n)
        }
    };
    Ok(ListLayout { dtype: spec.dtype, shape, offsets, values, ranges, width, fill })
}

fn ranges(array: &ArrayRef) -> Result<(ArrayRef, Vec<(usize, usize)>)> {
    if let Some(list) = array.as_list_opt::<i32>() {
        let o = list.value_offsets();
        let ranges = o.windows(2).map(|w| (w[0] as usize, w[1] as usize)).collect();
        return Ok((Arc::clone(list.values()), ranges));
    }
    if let Some(list) = array.as_list_opt::<i64>() {
        let o = list.value_offsets();
        let ranges = o.windows(2).map(|w| (w[0] as usize, w[1] as usize)).collect();
        return Ok((Arc::clone(list.values()), ranges));
    }
    Err(Error::internal("a list column is not a list"))
}

impl ListLayout {
    /// Bytes of the values tensor.
    pub fn value_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }

    /// Writes the values.
    pub fn write(&self, out: &mut [u8]) -> Result<()> {
        let size = self.dtype.size();
        let fill = &self.fill[..size];
        let mut left = out;
        let source = self.elements()?;
        for (at, end) in &self.ranges {
            let n = end - at;
            let width = if self.offsets.is_some() { n } else { self.width };
            let (row, later) = left.split_at_mut(width * size);
            row[..n * size].copy_from_slice(&source[at * size..end * size]);
            for pad in row[n * size..].chunks_exact_mut(size) {
                pad.copy_from_slice(fill);
            }
            if self.values.null_count() > 0 {
                for i in (*at..*end).filter(|i| self.values.is_null(*i)) {
                    row[(i - at) * size..(i - at + 1) * size].copy_from_slice(fill);
                }
            }
            left = later;
        }
        Ok(())
    }

    /// All elements in machine bytes.
    fn elements(&self) -> Result<std::borrow::Cow<'_, [u8]>> {
        if let Some(bools) = self.values.as_boolean_opt() {
            let bits = bools.values();
            return Ok((0..bits.len())
                .map(|i| u8::from(bits.value(i)))
                .collect::<Vec<u8>>()
                .into());
        }
        let data = self.values.to_data();
        let size = self.dtype.size();
        let buffer =
            data.buffers().first().ok_or_else(|| Error::internal("a list without values"))?;
        let bytes = buffer.slice_with_length(data.offset() * size, data.len() * size);
        Ok(bytes.to_vec().into())
    }
}
