//! Arbitrary bytes as a picture: pixels or an error, never a panic, a hang or a large allocation.
//!
//! The first byte chooses the pipeline and the rest is the file, so that one corpus serves them all.

#![no_main]

use std::cell::RefCell;
use std::sync::LazyLock;

use forebay_core::{DType, Layout, RowKey};
use forebay_ops::{ImagePipeline, Limits, Scratch, image_frames, image_info};
use forebay_plan::{ImageMode, ImageOp, Interpolation, MapImage, Quality};
use libfuzzer_sys::fuzz_target;

/// Tight, so that asking for more than they allow shows as an allocation that is too large.
const LIMITS: Limits = Limits { pixels: 1 << 20, bytes: 1 << 22, frames: 1000 };

const ROW: RowKey = RowKey { seed: 7, epoch: 1, ordinal: 3, index: 0 };

/// Every mode, in both qualities, as stored and through a crop with a resize.
static PIPELINES: LazyLock<Vec<ImagePipeline>> = LazyLock::new(|| {
    let crop = ImageOp::RandomResizedCrop {
        size: [24, 16],
        scale: [0.08, 1.0],
        ratio: [3.0 / 4.0, 4.0 / 3.0],
        interpolation: Interpolation::Bilinear,
        antialias: true,
    };
    let mut pipelines = Vec::new();
    for ops in [vec![], vec![crop, ImageOp::RandomHorizontalFlip { p: 0.5 }]] {
        for quality in [Quality::Exact, Quality::Fast] {
            for mode in [None, Some(ImageMode::L), Some(ImageMode::Rgb), Some(ImageMode::Rgba)] {
                let spec = MapImage {
                    mode,
                    quality,
                    dtype: DType::UInt8,
                    layout: Layout::Chw,
                    ..MapImage::new("image", ops.clone())
                };
                let pipeline = ImagePipeline::new(&spec, 0).expect("the steps are sound");
                pipelines.push(pipeline.with_limits(LIMITS));
            }
        }
    }
    pipelines
});

thread_local! {
    /// Shared by all pictures, as a thread of a loader shares it: none may see another's pixels.
    static WORK: RefCell<(Scratch, Vec<u8>)> = RefCell::default();
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, file)) = bytes.split_first() else { return };
    let info = image_info(file);
    let _ = image_frames(file, &LIMITS);
    let pipeline = &PIPELINES[usize::from(choice) % PIPELINES.len()];
    let Ok(probe) = pipeline.probe(file, ROW) else { return };
    let info = info.expect("what can be planned has a header");
    assert!(pipeline.mode().is_some() || info.mode == probe.mode);
    WORK.with_borrow_mut(|(scratch, out)| {
        out.clear();
        out.resize(probe.elements(), 0);
        if let Ok(written) = pipeline.run(scratch, file, ROW, out) {
            assert_eq!(written, probe);
        }
    });
});
