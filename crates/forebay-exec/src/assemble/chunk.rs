//! A part of a batch that one thread works on: consecutive samples of one column of pictures.

use std::sync::Arc;

use forebay_core::Result;
use forebay_feed::Region;
use forebay_ops::Scratch;

use crate::bad::BadValue;
use crate::encode::EncodeTask;
use crate::images::ImageTask;
use crate::rows::Rows;

pub(super) struct Chunk {
    pub work: Work,
    /// The first sample, and the one behind the last.
    pub first: usize,
    pub last: usize,
}

/// What is done with the samples.
pub(super) enum Work {
    /// Decoded into their part of the slab.
    Decode(Arc<ImageTask>, Region),
    /// Decoded and encoded again.
    Encode(Arc<EncodeTask>),
}

impl Chunk {
    /// The number of the output among the batch's.
    pub fn output(&self) -> usize {
        match &self.work {
            Work::Decode(task, _) => task.output(),
            Work::Encode(task) => task.output(),
        }
    }

    /// Does it. `at` is the sample being worked on; bad ones that are put up with go to `bad`.
    pub fn run(
        &mut self,
        rows: &Rows,
        scratch: &mut Scratch,
        at: &mut usize,
        bad: &mut Vec<BadValue>,
        check: &impl Fn() -> Result<()>,
    ) -> Result<()> {
        let (first, last) = (self.first, self.last);
        match &mut self.work {
            Work::Decode(task, region) => {
                task.run(rows, first..last, region, scratch, at, bad, check)
            }
            Work::Encode(task) => {
                let samples = rows.samples().skip(first).take(last - first);
                task.run(first, samples, scratch, at, bad, check)
            }
        }
    }
}
