//! The image columns of a batch.

use std::ops::Range;
use std::sync::Arc;

use forebay_core::suggest::not_null;
use forebay_core::{DType, Error, ErrorKind, Result, RowKey};
use forebay_feed::{Column, Dense, Slab};
use forebay_ops::Scratch;
use forebay_plan::ImageMode;

use crate::assemble::{arrow_of, bytes_at};
use crate::outputs::ImageSpec;
use crate::part::Part;
use crate::rows::Rows;

/// One image column of one batch, with the place of every image.
pub struct ImageTask {
    spec: ImageSpec,
    column: usize,
    name: Arc<str>,
    seed: u64,
    epoch: u64,
    dtype: DType,
    places: Places,
}

enum Places {
    /// All images have one shape.
    Fixed { shape: [usize; 3], width: usize, rows: usize },
    /// Each its own: shapes, and byte offsets (one more than shapes).
    Each {
        shapes: Vec<[usize; 3]>,
        offsets: Vec<usize>,
        /// The first sample whose header says no shape: an error of a sample before it comes first.
        broken: Option<(usize, Error)>,
    },
}

/// Finds out the shapes, from the headers where the operators do not fix them.
pub fn task(
    spec: &ImageSpec,
    column: usize,
    name: &Arc<str>,
    rows: &Rows,
    seed: u64,
    epoch: u64,
) -> Result<ImageTask> {
    let dtype = spec.pipeline.dtype();
    let probe = |part: &Part, row: usize| {
        let bytes = image_bytes(part, column, name, row)?;
        let key = spec.key(part, seed, epoch, row);
        spec.pipeline.probe(bytes, key).map_err(|e| located(e, part, row, name))
    };
    let places = match spec.pipeline.fixed_size() {
        Some(_) => {
            let mode = match (spec.mode.get(), rows.samples().next()) {
                (Some(mode), _) => *mode,
                (None, Some((part, row))) => {
                    let probe = probe(part, row)?;
                    *spec.mode.get_or_init(|| Box::new(probe.mode))
                }
                (None, None) => ImageMode::Rgb,
            };
            let shape = spec
                .pipeline
                .shape(mode.channels())
                .ok_or_else(|| Error::internal("a fixed size without a shape"))?;
            let width = shape.iter().product::<usize>() * dtype.size();
            Places::Fixed { shape, width, rows: rows.len() }
        }
        None => {
            let mut shapes = Vec::with_capacity(rows.len());
            let mut offsets = vec![0usize];
            let mut at = 0usize;
            let mut broken = None;
            for (i, (part, row)) in rows.samples().enumerate() {
                let checked = probe(part, row)
                    .and_then(|probe| same_mode(spec, probe.mode, part, row, name).map(|()| probe));
                let probe = match checked {
                    Ok(probe) => probe,
                    Err(e) => {
                        broken = Some((i, e));
                        offsets.resize(rows.len() + 1, at);
                        break;
                    }
                };
                at += probe.elements() * dtype.size();
                let layout = spec.pipeline.layout();
                shapes.push(layout.shape(probe.height, probe.width, probe.channels));
                offsets.push(at);
            }
            Places::Each { shapes, offsets, broken }
        }
    };
    Ok(ImageTask { spec: spec.clone(), column, name: Arc::clone(name), seed, epoch, dtype, places })
}

impl ImageSpec {
    /// The key of a picture's draws. One that was there before its row was multiplied is repeated.
    fn key(&self, part: &Part, seed: u64, epoch: u64, row: usize) -> RowKey {
        let key = part.key(seed, epoch, row);
        if self.multiplied { key } else { RowKey { index: 0, ..key } }
    }
}

fn image_bytes<'a>(part: &'a Part, column: usize, name: &str, row: usize) -> Result<&'a [u8]> {
    bytes_at(arrow_of(&part.columns[column])?, row)
        .and_then(|bytes| {
            bytes.ok_or_else(|| {
                Error::new(ErrorKind::Schema, "the image is null")
                    .with_hint(format!("leave such rows out with {}", not_null(name)))
            })
        })
        .map_err(|e| part.locate(e.in_column(name), row))
}

/// An error of a picture, with its place and a way on.
fn located(error: Error, part: &Part, row: usize, name: &str) -> Error {
    let error = match error.kind() {
        ErrorKind::Corrupt => error.with_hint(
            "mend the value where the file is written, or leave the row out: a filter over other columns \
             keeps it from being decoded",
        ),
        _ => error,
    };
    part.locate(error.in_column(name), row)
}

/// Images of one column have one mode: gray beside colour would make tensors that do not fit.
fn same_mode(spec: &ImageSpec, mode: ImageMode, part: &Part, row: usize, name: &str) -> Result<()> {
    let first = *spec.mode.get_or_init(|| Box::new(mode));
    if first == mode {
        return Ok(());
    }
    let error = Error::new(
        ErrorKind::Schema,
        format!(
            "this image has mode {}, and others of the column have {}",
            mode.name(),
            first.name()
        ),
    )
    .in_column(name)
    .with_hint("convert all of them with map_image(..., mode=\"RGB\")");
    Err(part.locate(error, row))
}

impl ImageTask {
    /// The number of the output among the batch's.
    pub fn output(&self) -> usize {
        self.column
    }

    /// Bytes of all images.
    pub fn bytes(&self) -> usize {
        match &self.places {
            Places::Fixed { width, rows, .. } => width * rows,
            Places::Each { offsets, .. } => offsets.last().copied().unwrap_or(0),
        }
    }

    /// Byte offset of sample `i` within the column; of the end for the number of samples.
    pub fn offset(&self, i: usize) -> usize {
        match &self.places {
            Places::Fixed { width, .. } => width * i,
            Places::Each { offsets, .. } => offsets.get(i).copied().unwrap_or(0),
        }
    }

    /// Decodes and transforms samples into their places. `at` is the sample being worked on.
    pub fn run(
        &self,
        rows: &Rows,
        samples: Range<usize>,
        out: &mut [u8],
        scratch: &mut Scratch,
        at: &mut usize,
        check: &impl Fn() -> Result<()>,
    ) -> Result<()> {
        let base = self.offset(samples.start);
        let range = samples.clone();
        for (i, (part, row)) in range.zip(rows.samples().skip(samples.start)) {
            *at = i;
            check()?;
            if let Places::Each { broken: Some((first, e)), .. } = &self.places
                && i >= *first
            {
                return Err(e.clone());
            }
            let bytes = image_bytes(part, self.column, &self.name, row)?;
            let key = self.spec.key(part, self.seed, self.epoch, row);
            let place = &mut out[self.offset(i) - base..self.offset(i + 1) - base];
            if self.spec.pipeline.mode().is_none() {
                let probe = self.spec.pipeline.probe(bytes, key);
                let mode = probe.map_err(|e| located(e, part, row, &self.name))?.mode;
                same_mode(&self.spec, mode, part, row, &self.name)?;
            }
            self.spec
                .pipeline
                .run(scratch, bytes, key, place)
                .map_err(|e| located(e, part, row, &self.name))?;
        }
        Ok(())
    }

    /// The finished column.
    pub fn column(&self, rows: usize, at: usize, slab: &Slab) -> Column {
        match &self.places {
            Places::Fixed { shape, .. } => Column::Dense(Dense {
                dtype: self.dtype,
                shape: std::iter::once(rows).chain(*shape).collect(),
                offset: at,
                slab: slab.clone(),
            }),
            Places::Each { shapes, offsets, .. } => Column::Each(
                shapes
                    .iter()
                    .zip(offsets)
                    .map(|(shape, offset)| Dense {
                        dtype: self.dtype,
                        shape: shape.to_vec(),
                        offset: at + offset,
                        slab: slab.clone(),
                    })
                    .collect(),
            ),
        }
    }
}
