//! Columns of pictures that are written back as files: jobs only.
//!
//! The bytes of a picture are known when it is made, so they have no places in a slab. Each chunk of rows
//! makes an Arrow array of its own, and the column is all of them in order.

use std::sync::{Arc, Mutex};

use arrow::array::{Array, ArrayRef, BinaryArray, UInt32Array, new_empty_array};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer};
use arrow::compute::{concat, take};
use arrow_schema::{ArrowError, DataType, Field, FieldRef};
use forebay_core::sync::lock;
use forebay_core::{Error, ErrorKind, Result};
use forebay_ops::Scratch;
use forebay_plan::OnError;

use crate::bad::{BadValue, Failure};
use crate::images::{image_bytes, located};
use crate::outputs::{ImageSpec, Make, OutputSpec};
use crate::part::Part;
use crate::rows::Rows;

/// A picture of a few pixels is a file of some hundred bytes.
const FILE_BYTES: u64 = 1024;

/// A column of encoded pictures.
#[derive(Clone)]
pub struct EncodeSpec {
    /// Where the pictures come from, and what is done with them.
    pub image: ImageSpec,
    /// What comes out: bytes, under the column's own metadata.
    pub field: FieldRef,
}

impl EncodeSpec {
    /// Of the column that the pictures come from, which gets the name `name`.
    pub fn new(image: ImageSpec, name: &str, from: &Field) -> Self {
        let nullable = from.is_nullable() || image.on_error == OnError::Null;
        // Whatever held the pictures (views, large values, values of one length): the files of a batch
        // are far from what 32-bit offsets reach.
        let field = from.clone().with_data_type(DataType::Binary);
        let field = field.with_name(name).with_nullable(nullable);
        Self { image, field: Arc::new(field) }
    }

    /// About the most bytes of a row: those of its pixels. A row that is bad has none.
    fn most_bytes(
        &self,
        (column, name): (usize, &str),
        (part, row): (&Part, usize),
        (seed, epoch): (u64, u64),
    ) -> u64 {
        let width = self.image.most_width().or_else(|| {
            let bytes = image_bytes(part, column, name, row).ok()?;
            let key = self.image.key(part, seed, epoch, row);
            Some(self.image.pipeline.probe(bytes, key).ok()?.elements())
        });
        width.unwrap_or(0) as u64 + FILE_BYTES
    }
}

/// How many of these rows, from the first on, hold `bytes` bytes of pictures to be encoded: at least one,
/// and all where there are none.
pub fn together(outputs: &[OutputSpec], rows: &Rows, draws: (u64, u64), bytes: u64) -> u64 {
    let encoded = |(c, o): (usize, &'_ OutputSpec)| match &o.make {
        Make::Encode(spec) => Some((c, Arc::clone(&o.name), spec.clone())),
        _ => None,
    };
    let specs: Vec<_> = outputs.iter().enumerate().filter_map(encoded).collect();
    if specs.is_empty() {
        return rows.len() as u64;
    }
    let mut sum = 0;
    let fits = |sample: &(&Part, usize)| {
        let most = |(c, name, spec): &(usize, Arc<str>, EncodeSpec)| {
            spec.most_bytes((*c, name), *sample, draws)
        };
        sum += specs.iter().map(most).sum::<u64>();
        sum <= bytes
    };
    (rows.samples().take_while(fits).count() as u64).max(1)
}

/// One encoded column of one batch.
pub struct EncodeTask {
    spec: EncodeSpec,
    column: usize,
    name: Arc<str>,
    draws: (u64, u64),
    /// What is made, with the number of the first sample.
    made: Mutex<Vec<(usize, ArrayRef)>>,
}

impl EncodeTask {
    /// Nothing is made yet.
    pub fn new(spec: &EncodeSpec, column: usize, name: &Arc<str>, draws: (u64, u64)) -> Self {
        Self { spec: spec.clone(), column, name: Arc::clone(name), draws, made: Mutex::default() }
    }

    /// The number of the output among the batch's.
    pub fn output(&self) -> usize {
        self.column
    }

    /// Encodes samples from number `first` on. `at` is the one being worked on; bad ones that are put up
    /// with are null, and go to `bad`.
    pub fn run<'r>(
        &self,
        first: usize,
        samples: impl Iterator<Item = (&'r Part, usize)>,
        scratch: &mut Scratch,
        at: &mut usize,
        bad: &mut Vec<BadValue>,
        check: &impl Fn() -> Result<()>,
    ) -> Result<()> {
        let mut files = Files::default();
        for (i, sample) in (first..).zip(samples) {
            *at = i;
            check()?;
            let error = match self.one(sample, scratch, &mut files.bytes) {
                Ok(()) => None,
                Err(failure) => Some(failure.tolerated(self.spec.image.on_error)?),
            };
            files.end(error.is_none());
            bad.extend(error.map(|error| BadValue {
                sample: i,
                output: self.column,
                policy: self.spec.image.on_error,
                error,
            }));
        }
        lock(&self.made).push((first, files.finish()?));
        Ok(())
    }

    fn one(
        &self,
        (part, row): (&Part, usize),
        scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let bytes = image_bytes(part, self.column, &self.name, row)?;
        let (seed, epoch) = self.draws;
        let image = &self.spec.image;
        let key = image.key(part, seed, epoch, row);
        let written = image.pipeline.encode(scratch, bytes, key, out);
        let failed = |e| Failure::of(e).map(|e| located(e, part, row, &self.name, "a null"));
        written.map(drop).map_err(failed)
    }

    /// The finished column.
    pub fn array(&self) -> Result<ArrayRef> {
        let mut made = lock(&self.made);
        made.sort_by_key(|(first, _)| *first);
        let arrays: Vec<&dyn Array> = made.iter().map(|(_, array)| &**array).collect();
        match made.as_slice() {
            [] => Ok(new_empty_array(self.spec.field.data_type())),
            [(_, whole)] => Ok(Arc::clone(whole)),
            _ => concat(&arrays).map_err(|e| self.too_large(e)),
        }
    }

    /// The same without the samples that are skipped: `from` says which stay, in order.
    pub fn kept(&self, from: &[Option<usize>]) -> Result<Self> {
        let stay = from.iter().map(|sample| sample.and_then(|sample| u32::try_from(sample).ok()));
        let stay: Option<UInt32Array> = stay.map(|s| s.map(Some)).collect::<Option<_>>();
        let stay = stay.ok_or_else(|| Error::internal("an encoded row was to be replaced"))?;
        let kept = take(&self.array()?, &stay, None).map_err(|e| self.too_large(e))?;
        let task = Self::new(&self.spec, self.column, &self.name, self.draws);
        lock(&task.made).push((0, kept));
        Ok(task)
    }

    fn too_large(&self, error: ArrowError) -> Error {
        too_large().in_column(&*self.name).with_source(error)
    }
}

fn too_large() -> Error {
    Error::new(ErrorKind::Resource, "the encoded pictures do not fit one Arrow array")
}

/// Files one after the other.
#[derive(Default)]
struct Files {
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
    is_there: Vec<bool>,
}

impl Files {
    /// The file that was written last is whole; or there is none.
    fn end(&mut self, is_there: bool) {
        self.ends.push(self.bytes.len());
        self.is_there.push(is_there);
    }

    fn finish(self) -> Result<ArrayRef> {
        let ends = self.ends.iter().map(|end| i32::try_from(*end));
        let offsets = std::iter::once(Ok(0)).chain(ends).collect::<Result<Vec<i32>, _>>();
        let offsets = offsets.map_err(|e| too_large().with_source(e))?;
        let nulls = NullBuffer::from(self.is_there);
        let nulls = (nulls.null_count() > 0).then_some(nulls);
        BinaryArray::try_new(OffsetBuffer::new(offsets.into()), Buffer::from(self.bytes), nulls)
            .map(|array| Arc::new(array) as ArrayRef)
            .map_err(|e| Error::internal("encoded pictures are no array").with_source(e))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::array::AsArray;

    use super::*;

    #[test]
    fn files_become_an_array() {
        let mut files = Files::default();
        for value in [Some("ab"), None, Some("c")] {
            files.bytes.extend(value.unwrap_or_default().as_bytes());
            files.end(value.is_some());
        }
        let array = files.finish().unwrap();
        let values: Vec<Option<&[u8]>> = array.as_binary::<i32>().iter().collect();
        assert_eq!(values, [Some(&b"ab"[..]), None, Some(b"c")]);
        assert_eq!(Files::default().finish().unwrap().len(), 0);
    }
}
