//! Rows as records of a row store, and back.
//!
//! A record is the row's fixed-width outputs, then its others in the row format of Arrow.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::buffer::{Buffer, MutableBuffer};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, SortField};
use forebay_core::{Error, ErrorKind, Result};
use forebay_io::rowstore::{Segment, SegmentBuilder};

use crate::outputs::{LabelSpec, Make, OutputSpec};
use crate::part::{Part, PartColumn, Places};

/// What the records of a store look like.
pub struct Records {
    /// For each output the bytes of its fixed-width rows, or none.
    widths: Vec<Option<usize>>,
    /// Bytes of all of them.
    fixed: usize,
    /// The others, with their types.
    others: Option<(RowConverter, Vec<DataType>)>,
}

impl Records {
    /// Of these outputs, whose Arrow types are `types`.
    ///
    /// # Errors
    /// A type that cannot be in a record.
    pub fn new(outputs: &[OutputSpec], types: impl Fn(usize) -> DataType) -> Result<Self> {
        let mut widths = Vec::with_capacity(outputs.len());
        let mut others = Vec::new();
        for output in outputs {
            let from = match &output.make {
                Make::Dense(dense) | Make::Label(LabelSpec { dense, .. }) => {
                    widths.push(Some(dense.width()));
                    continue;
                }
                Make::Image(image) => image.from,
                Make::Encode(encode) => encode.image.from,
                Make::List(list) => list.from,
                Make::Arrow { from, .. } => *from,
            };
            widths.push(None);
            let field = SortField::new(types(from));
            if !RowConverter::supports_fields(std::slice::from_ref(&field)) {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!(
                        "the rows of shuffle=\"full\" do not fit the memory, and a column of {} cannot be kept in a file",
                        types(from)
                    ),
                )
                .in_column(&*output.name)
                .with_hint("leave the column out, give memory_limit=, or use shuffle=\"window\""));
            }
            others.push(types(from));
        }
        let fixed = widths.iter().flatten().sum();
        let fields = others.iter().map(|t| SortField::new(t.clone())).collect();
        let converter = || {
            RowConverter::new(fields).map_err(|e| Error::internal("no row format").with_source(e))
        };
        let others = if others.is_empty() { None } else { Some((converter()?, others)) };
        Ok(Self { widths, fixed, others })
    }

    /// Bytes of a row, where all are of one length.
    pub fn length(&self) -> Option<usize> {
        self.others.is_none().then_some(self.fixed)
    }

    /// The records of a block.
    pub fn segment(&self, parts: &[Part]) -> Result<Segment> {
        let rows: usize = parts.iter().map(|p| p.rows).sum();
        let mut segment = SegmentBuilder::new(rows, self.fixed, self.others.is_none());
        for part in parts {
            let mut dense: Vec<(&[u8], usize)> = Vec::new();
            let mut arrays: Vec<ArrayRef> = Vec::new();
            for (column, width) in part.columns.iter().zip(&self.widths) {
                match (column, width) {
                    (PartColumn::Dense(bytes), Some(width)) => dense.push((bytes, *width)),
                    (PartColumn::Arrow(array), None) => arrays.push(Arc::clone(array)),
                    _ => return Err(Error::internal("a column of another form than its output")),
                }
            }
            let others = self.others.as_ref().map(|(converter, _)| {
                let rows = converter.convert_columns(&arrays);
                rows.map_err(|e| Error::internal("a row cannot be packed").with_source(e))
            });
            let others = others.transpose()?;
            for row in 0..part.rows {
                segment.push(|out| {
                    for (bytes, width) in &dense {
                        out.extend_from_slice(&bytes[row * width..(row + 1) * width]);
                    }
                    if let Some(rows) = &others {
                        out.extend_from_slice(rows.row(row).as_ref());
                    }
                });
            }
        }
        Ok(segment.finish())
    }

    /// Turns records back into rows.
    pub fn part(&self, records: &[&[u8]], places: Places) -> Result<Part> {
        if records.iter().any(|r| r.len() < self.fixed) {
            return Err(Error::internal("a record is too short"));
        }
        let mut others = match &self.others {
            None => Vec::new(),
            Some((converter, types)) => {
                let parser = converter.parser();
                let rows = records.iter().map(|r| parser.parse(&r[self.fixed..]));
                let unpacked = |e| Error::internal("a row cannot be unpacked").with_source(e);
                let arrays = converter.convert_rows(rows).map_err(unpacked)?;
                // Dictionaries come back as their values.
                let arrays = arrays.iter().zip(types).map(|(array, t)| {
                    if array.data_type() == t { Ok(Arc::clone(array)) } else { cast(array, t) }
                });
                arrays.collect::<std::result::Result<Vec<_>, _>>().map_err(unpacked)?
            }
        }
        .into_iter();
        let mut before = 0;
        let mut columns = Vec::with_capacity(self.widths.len());
        for width in &self.widths {
            let Some(width) = width else {
                let array = others.next().ok_or_else(|| Error::internal("a column is missing"))?;
                columns.push(PartColumn::Arrow(array));
                continue;
            };
            let mut bytes = MutableBuffer::with_capacity(records.len() * width);
            for record in records {
                bytes.extend_from_slice(&record[before..before + width]);
            }
            before += width;
            columns.push(PartColumn::Dense(Buffer::from(bytes)));
        }
        Ok(Part { places, rows: records.len(), columns })
    }
}
