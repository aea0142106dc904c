//! The image columns of a batch.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use forebay_core::suggest::not_null;
use forebay_core::{DType, Error, ErrorKind, Layout, Result, RowKey};
use forebay_feed::{Column, Dense, Slab};
use forebay_ops::{Probe, Scratch};
use forebay_plan::{ImageMode, OnError};

use crate::assemble::{arrow_of, bytes_at};
use crate::bad::{BadValue, Failure};
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
        /// The samples whose headers say none, where that is put up with.
        bad: Vec<BadValue>,
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
    let probe = |part: &Part, row: usize| -> Result<Probe, Failure> {
        let bytes = image_bytes(part, column, name, row)?;
        let key = spec.key(part, seed, epoch, row);
        spec.pipeline
            .probe(bytes, key)
            .map_err(|e| Failure::of(e).map(|e| located(e, part, row, name, ZEROS)))
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
            let mut bad = Vec::new();
            let layout = spec.pipeline.layout();
            for (i, (part, row)) in rows.samples().enumerate() {
                let checked = probe(part, row).and_then(|probe| {
                    same_mode(spec, probe.mode, part, row, name).map_err(Failure::Run)?;
                    Ok(probe)
                });
                match checked.map_err(|e| e.tolerated(spec.on_error)) {
                    Ok(probe) => {
                        at += probe.elements() * dtype.size();
                        shapes.push(layout.shape(probe.height, probe.width, probe.channels));
                    }
                    Err(Ok(error)) => {
                        shapes.push(spec.nothing());
                        bad.push(BadValue {
                            sample: i,
                            output: column,
                            policy: spec.on_error,
                            error,
                        });
                    }
                    Err(Err(e)) => {
                        broken = Some((i, e));
                        offsets.resize(rows.len() + 1, at);
                        break;
                    }
                }
                offsets.push(at);
            }
            Places::Each { shapes, offsets, broken, bad }
        }
    };
    Ok(ImageTask { spec: spec.clone(), column, name: Arc::clone(name), seed, epoch, dtype, places })
}

impl ImageSpec {
    /// The key of a picture's draws. One that was there before its row was multiplied is repeated.
    pub(crate) fn key(&self, part: &Part, seed: u64, epoch: u64, row: usize) -> RowKey {
        let key = part.key(seed, epoch, row);
        if self.multiplied { key } else { RowKey { index: 0, ..key } }
    }

    /// The shape that stands for a bad image where each has its own: no pixels, and the channels of the
    /// others. A policy that puts up with bad images has a declared mode.
    fn nothing(&self) -> [usize; 3] {
        let mode = self.pipeline.mode().unwrap_or(ImageMode::Rgb);
        self.pipeline.layout().shape(0, 0, mode.channels())
    }

    /// Why the image of a row is bad; none where it is good. Any other failure is an error.
    pub fn why_bad(
        &self,
        column: usize,
        name: &str,
        (part, row): (&Part, usize),
        (seed, epoch): (u64, u64),
        scratch: &mut Scratch,
    ) -> Result<Option<Error>> {
        let mut decode = || -> Result<(), Failure> {
            let located = |e: Error| Failure::of(e).map(|e| located(e, part, row, name, ZEROS));
            let bytes = image_bytes(part, column, name, row)?;
            let key = self.key(part, seed, epoch, row);
            let probe = self.pipeline.probe(bytes, key).map_err(located)?;
            let mut out = vec![0; probe.elements() * self.pipeline.dtype().size()];
            self.pipeline.run(scratch, bytes, key, &mut out).map_err(located)?;
            Ok(())
        };
        match decode() {
            Ok(()) => Ok(None),
            Err(failure) => failure.tolerated(OnError::Skip).map(Some),
        }
    }
}

pub(crate) fn image_bytes<'a>(
    part: &'a Part,
    column: usize,
    name: &str,
    row: usize,
) -> Result<&'a [u8], Failure> {
    let located = |e: Error| part.locate(e.in_column(name), row);
    let array = arrow_of(&part.columns[column]).map_err(|e| Failure::Run(located(e)))?;
    let bytes = bytes_at(array, row).map_err(|e| Failure::Run(located(e)))?;
    bytes.ok_or_else(|| {
        let error = Error::new(ErrorKind::Schema, "the image is null")
            .with_hint(format!("leave such rows out with {}", not_null(name)));
        Failure::Value(located(error))
    })
}

/// What a tensor has in place of a bad picture.
const ZEROS: &str = "zeros";

/// An error of a picture, with its place and a way on. `null` is what that policy gives.
pub(crate) fn located(error: Error, part: &Part, row: usize, name: &str, null: &str) -> Error {
    let error = match error.kind() {
        ErrorKind::Corrupt => error.with_hint(format!(
            "mend the value where the file is written, or put up with it: map_image(..., on_error=\"skip\") takes \
             another row, on_error=\"null\" {null}",
        )),
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

    /// What the headers say is bad already.
    pub fn bad(&self) -> &[BadValue] {
        match &self.places {
            Places::Fixed { .. } => &[],
            Places::Each { bad, .. } => bad,
        }
    }

    /// Shape, layout and element type of every image, where all have one shape.
    pub fn picture(&self) -> Option<([usize; 3], Layout, DType)> {
        match &self.places {
            Places::Fixed { shape, .. } => Some((*shape, self.spec.pipeline.layout(), self.dtype)),
            Places::Each { .. } => None,
        }
    }

    /// Height and width of every image, where all have one shape.
    pub fn size(&self) -> Option<(usize, usize)> {
        let ([a, b, c], layout, _) = self.picture()?;
        Some(match layout {
            Layout::Chw => (b, c),
            Layout::Hwc => (a, b),
        })
    }

    /// Whether all samples take the same room.
    pub fn is_fixed(&self) -> bool {
        matches!(self.places, Places::Fixed { .. })
    }

    /// Decodes and transforms samples into their places. `at` is the sample being worked on; bad ones
    /// that are put up with are zeros, and go to `bad`.
    #[expect(clippy::too_many_arguments, reason = "what one chunk of a batch works on")]
    pub fn run(
        &self,
        rows: &Rows,
        samples: Range<usize>,
        out: &mut [u8],
        scratch: &mut Scratch,
        at: &mut usize,
        bad: &mut Vec<BadValue>,
        check: &impl Fn() -> Result<()>,
    ) -> Result<()> {
        let base = self.offset(samples.start);
        let range = samples.clone();
        for (i, sample) in range.zip(rows.samples().skip(samples.start)) {
            *at = i;
            check()?;
            match &self.places {
                Places::Each { broken: Some((first, e)), .. } if i >= *first => {
                    return Err(e.clone());
                }
                Places::Each { bad, .. }
                    if bad.binary_search_by_key(&i, |known| known.sample).is_ok() =>
                {
                    continue;
                }
                _ => {}
            }
            let place = &mut out[self.offset(i) - base..self.offset(i + 1) - base];
            if let Some(found) = self.one(i, sample, place, scratch)? {
                bad.push(found);
            }
        }
        Ok(())
    }

    /// Decodes and transforms one sample into its place. Zeros, and why, where it is bad and that is put
    /// up with.
    pub fn one(
        &self,
        sample: usize,
        (part, row): (&Part, usize),
        place: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<Option<BadValue>> {
        let mut decode = || -> Result<(), Failure> {
            let failed =
                |e: Error| Failure::of(e).map(|e| located(e, part, row, &self.name, ZEROS));
            let bytes = image_bytes(part, self.column, &self.name, row)?;
            let key = self.spec.key(part, self.seed, self.epoch, row);
            if self.spec.pipeline.mode().is_none() {
                let mode = self.spec.pipeline.probe(bytes, key).map_err(failed)?.mode;
                same_mode(&self.spec, mode, part, row, &self.name).map_err(Failure::Run)?;
            }
            self.spec.pipeline.run(scratch, bytes, key, place).map_err(failed)?;
            Ok(())
        };
        let Err(failure) = decode() else { return Ok(None) };
        let error = failure.tolerated(self.spec.on_error)?;
        place.fill(0);
        Ok(Some(BadValue { sample, output: self.column, policy: self.spec.on_error, error }))
    }

    /// The finished column; `bad` samples without pixels, where each has a size of its own.
    pub fn column(&self, rows: usize, at: usize, bad: &BTreeSet<usize>, slab: &Slab) -> Column {
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
                    .enumerate()
                    .map(|(i, (shape, offset))| Dense {
                        dtype: self.dtype,
                        shape: if bad.contains(&i) { self.spec.nothing() } else { *shape }.to_vec(),
                        offset: at + offset,
                        slab: slab.clone(),
                    })
                    .collect(),
            ),
        }
    }
}
