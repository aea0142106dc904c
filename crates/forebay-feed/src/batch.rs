//! What a trainer receives: named columns of a batch.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BooleanArray, FixedSizeListArray, RecordBatch, RecordBatchOptions, make_array,
};
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use forebay_core::{DType, Error, ErrorKind, Result};

use crate::Slab;

/// One batch: `rows` samples in named columns, in the order of the dataset's columns.
#[derive(Clone)]
pub struct Batch {
    /// Number of samples.
    pub rows: usize,
    /// Name and values of each column.
    pub columns: Vec<(Arc<str>, Column)>,
}

/// The values of one column.
#[derive(Clone)]
pub enum Column {
    /// A dense tensor whose first axis is the batch.
    Dense(Dense),
    /// One tensor a sample, each of its own shape: images that no operator brings to one size.
    Each(Vec<Dense>),
    /// Lists of different lengths: sample i is `values[offsets[i]..offsets[i + 1]]`.
    Ragged {
        /// All elements, one after the other.
        values: Dense,
        /// `rows + 1` positions, int64.
        offsets: Dense,
    },
    /// Strings, bytes, or anything else that stays an Arrow array.
    Arrow {
        /// The values.
        values: ArrayRef,
        /// Type, nullability and metadata, the same for every batch.
        field: FieldRef,
    },
}

/// A dense, contiguous, row-major tensor over a slab.
#[derive(Clone)]
pub struct Dense {
    /// Element type.
    pub dtype: DType,
    /// Lengths of the axes.
    pub shape: Vec<usize>,
    /// Byte offset in the slab.
    pub offset: usize,
    /// The memory.
    pub slab: Slab,
}

impl Dense {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of the tensor.
    pub fn byte_len(&self) -> usize {
        self.elements() * self.dtype.size()
    }

    /// The tensor's bytes, in machine order.
    pub fn bytes(&self) -> &[u8] {
        &self.slab.bytes()[self.offset..self.offset + self.byte_len()]
    }

    /// Address of the first element.
    pub fn as_ptr(&self) -> *const u8 {
        self.bytes().as_ptr()
    }

    /// The tensor as an Arrow array of `shape[0]` values: numbers for one axis, fixed-size lists
    /// otherwise. Shares the slab, except for booleans, which Arrow packs into bits.
    pub fn to_arrow(&self) -> Result<ArrayRef> {
        let values: ArrayRef = if self.dtype == DType::Bool {
            Arc::new(self.bytes().iter().map(|b| Some(*b != 0)).collect::<BooleanArray>())
        } else {
            let buffer = self.slab.to_buffer(self.offset..self.offset + self.byte_len())?;
            let data = arrow::array::ArrayData::builder(arrow_type(self.dtype)?)
                .len(self.elements())
                .add_buffer(buffer)
                .build()
                .map_err(|e| Error::internal("a tensor does not fit Arrow").with_source(e))?;
            make_array(data)
        };
        if self.shape.len() <= 1 {
            return Ok(values);
        }
        let width = self.shape[1..].iter().product::<usize>();
        let width = i32::try_from(width).map_err(|_| {
            Error::new(
                ErrorKind::Unsupported,
                format!("{width} elements a row are too many for Arrow"),
            )
        })?;
        let item = Arc::new(Field::new("item", values.data_type().clone(), true));
        FixedSizeListArray::try_new_with_length(item, width, values, None, self.shape[0])
            .map(|a| Arc::new(a) as ArrayRef)
            .map_err(|e| Error::internal("a tensor does not fit Arrow").with_source(e))
    }
}

/// The Arrow type of a dtype.
pub fn arrow_type(dtype: DType) -> Result<DataType> {
    Ok(match dtype {
        DType::Bool => DataType::Boolean,
        DType::UInt8 => DataType::UInt8,
        DType::Int8 => DataType::Int8,
        DType::UInt16 => DataType::UInt16,
        DType::Int16 => DataType::Int16,
        DType::UInt32 => DataType::UInt32,
        DType::Int32 => DataType::Int32,
        DType::UInt64 => DataType::UInt64,
        DType::Int64 => DataType::Int64,
        DType::Float16 => DataType::Float16,
        DType::Float32 => DataType::Float32,
        DType::Float64 => DataType::Float64,
        DType::BFloat16 => {
            return Err(Error::new(ErrorKind::Unsupported, "Arrow has no bfloat16")
                .with_hint("use dtype=\"float16\" or \"float32\" for Arrow output"));
        }
    })
}

/// The Arrow field of a tensor column with rows of shape `row` (empty for plain numbers), marked
/// as the canonical extension type `arrow.fixed_shape_tensor`
/// (arrow.apache.org/docs/format/CanonicalExtensions.html).
pub fn tensor_field(name: &str, dtype: DType, row: &[usize]) -> Result<Field> {
    let element = arrow_type(dtype)?;
    if row.is_empty() {
        return Ok(Field::new(name, element, false));
    }
    let width = i32::try_from(row.iter().product::<usize>()).map_err(|_| {
        Error::new(
            ErrorKind::Unsupported,
            format!("tensors of shape {row:?} are too large for Arrow"),
        )
    })?;
    // Nullable, although no element is null: that is the storage type by which pyarrow knows tensors.
    let item = Arc::new(Field::new("item", element, true));
    let shape: Vec<String> = row.iter().map(ToString::to_string).collect();
    let metadata = [
        ("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned()),
        ("ARROW:extension:metadata".to_owned(), format!("{{\"shape\":[{}]}}", shape.join(","))),
    ];
    Ok(Field::new(name, DataType::FixedSizeList(item, width), false)
        .with_metadata(metadata.into_iter().collect()))
}

impl Column {
    /// Bytes of the values.
    pub fn byte_len(&self) -> u64 {
        let bytes = match self {
            Self::Dense(d) => d.byte_len(),
            Self::Each(all) => all.iter().map(Dense::byte_len).sum(),
            Self::Ragged { values, offsets } => values.byte_len() + offsets.byte_len(),
            Self::Arrow { values, .. } => values
                .to_data()
                .get_slice_memory_size()
                .unwrap_or_else(|_| values.get_array_memory_size()),
        };
        bytes as u64
    }

    /// Counts the column's memory as held by the consumer from now on.
    pub fn hand_over(&self) {
        match self {
            Self::Dense(d) => d.slab.hand_over(),
            Self::Each(all) => all.iter().for_each(|d| d.slab.hand_over()),
            Self::Ragged { values, .. } => values.slab.hand_over(),
            Self::Arrow { .. } => {}
        }
    }
}

impl Batch {
    /// Bytes of all values.
    pub fn byte_len(&self) -> u64 {
        self.columns.iter().map(|(_, column)| column.byte_len()).sum()
    }

    /// The column of that name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|(n, _)| &**n == name).map(|(_, c)| c)
    }

    /// The batch as an Arrow record batch; dense columns share the slab.
    pub fn to_arrow(&self) -> Result<RecordBatch> {
        let mut fields = Vec::with_capacity(self.columns.len());
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(self.columns.len());
        for (name, column) in &self.columns {
            match column {
                Column::Dense(d) => {
                    fields.push(tensor_field(name, d.dtype, d.shape.get(1..).unwrap_or(&[]))?);
                    arrays.push(d.to_arrow()?);
                }
                Column::Arrow { values, field } => {
                    fields.push(field.as_ref().clone());
                    arrays.push(Arc::clone(values));
                }
                Column::Ragged { .. } | Column::Each(_) => {
                    return Err(Error::new(
                        ErrorKind::Unsupported,
                        "tensors of different shapes have no Arrow form yet",
                    )
                    .in_column(&**name)
                    .with_hint("add an operator that fixes the size, e.g. Resize([h, w]), or use format=\"torch\""));
                }
            }
        }
        RecordBatch::try_new_with_options(
            Arc::new(Schema::new(fields)),
            arrays,
            &RecordBatchOptions::new().with_row_count(Some(self.rows)),
        )
        .map_err(|e| Error::internal("a batch does not fit Arrow").with_source(e))
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use crate::SlabPool;

    fn dense(dtype: DType, shape: &[usize], bytes: &[u8]) -> Dense {
        let mut w = SlabPool::new(1).take(bytes.len(), None).unwrap();
        w.region(0..bytes.len()).unwrap().copy_from_slice(bytes);
        Dense { dtype, shape: shape.to_vec(), offset: 0, slab: w.freeze().unwrap() }
    }

    #[test]
    fn arrow_shares_the_slab_and_keeps_it_alive() {
        let d = dense(DType::UInt16, &[2, 3], &[1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0]);
        let at = d.as_ptr();
        let array = d.to_arrow().unwrap();
        drop(d);
        let list = array.as_any().downcast_ref::<FixedSizeListArray>().unwrap();
        assert_eq!(list.len(), 2);
        let values = list.values().to_data();
        assert_eq!(values.buffers()[0].as_ptr(), at);
        assert_eq!(values.buffers()[0].typed_data::<u16>(), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn a_batch_becomes_a_record_batch() {
        let batch = Batch {
            rows: 2,
            columns: vec![
                ("flag".into(), Column::Dense(dense(DType::Bool, &[2], &[0, 1]))),
                ("x".into(), Column::Dense(dense(DType::UInt8, &[2, 2], &[1, 2, 3, 4]))),
            ],
        };
        assert_eq!(batch.byte_len(), 2 + 4);
        let rb = batch.to_arrow().unwrap();
        assert_eq!(rb.num_rows(), 2);
        let schema = rb.schema();
        assert_eq!(
            schema.field(1).metadata().get("ARROW:extension:metadata").unwrap(),
            "{\"shape\":[2]}"
        );
    }
}
