//! Options that are one word of a fixed list, and their spelling.
//!
//! Each list is written once, here; reading, writing, the error for a wrong word and the hint for
//! the nearest right one all come from it.

use forebay_core::{DType, Layout};

use crate::loader::{Format, Lists};
use crate::plan::{
    ImageMode, Interpolation, OnError, PaddingMode, Quality, Subsampling, WriteMode,
};
use crate::schedule::{EpochEnd, Shuffle};

/// One word of a fixed list.
pub(crate) trait Word: Copy + PartialEq + 'static {
    /// All words with their values.
    fn all() -> Vec<(&'static str, Self)>;

    /// Words that the design has and this version does not do yet, with what to use instead.
    fn later() -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// The spelling of a value.
    fn word(self) -> &'static str {
        Self::all().into_iter().find(|(_, v)| *v == self).map_or("?", |(w, _)| w)
    }
}

macro_rules! words {
    ($($type:ident { $($value:ident = $word:literal),* $(,)? } $(+ later { $($later:literal : $instead:literal),* $(,)? })?)*) => {$(
        impl Word for $type {
            fn all() -> Vec<(&'static str, Self)> {
                vec![$(($word, Self::$value)),*]
            }
            $(fn later() -> &'static [(&'static str, &'static str)] {
                &[$(($later, $instead)),*]
            })?
        }
    )*};
}

words! {
    ImageMode { Rgb = "RGB", L = "L", Rgba = "RGBA" }
    Quality { Fast = "fast", Exact = "exact" }
    OnError { Raise = "raise", Skip = "skip", Null = "null" }
    Interpolation { Nearest = "nearest", Bilinear = "bilinear", Bicubic = "bicubic" }
    PaddingMode { Constant = "constant", Edge = "edge", Reflect = "reflect", Symmetric = "symmetric" }
    Subsampling { S444 = "4:4:4", S422 = "4:2:2", S420 = "4:2:0" }
    WriteMode { Error = "error", Overwrite = "overwrite", Append = "append" }
    Layout { Hwc = "HWC", Chw = "CHW" }
    Shuffle { None = "none", Window = "window", Full = "full" }
    EpochEnd { Drop = "drop", Pad = "pad", Partial = "partial" }
    Format { Torch = "torch", Numpy = "numpy", Arrow = "arrow", Dlpack = "dlpack" }
    Lists { Error = "error", Ragged = "ragged", Pad = "pad" }
}

impl Word for DType {
    fn all() -> Vec<(&'static str, Self)> {
        Self::ALL.into_iter().map(|d| (d.name(), d)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<W: Word + std::fmt::Debug>() {
        for (word, value) in W::all() {
            assert_eq!(value.word(), word);
        }
    }

    #[test]
    fn every_value_has_its_word() {
        check::<ImageMode>();
        check::<Quality>();
        check::<OnError>();
        check::<Interpolation>();
        check::<PaddingMode>();
        check::<Subsampling>();
        check::<WriteMode>();
        check::<Layout>();
        check::<Shuffle>();
        check::<EpochEnd>();
        check::<Format>();
        check::<Lists>();
        check::<DType>();
        assert_eq!(ImageMode::all().len(), 3);
        for (word, mode) in ImageMode::all() {
            assert_eq!(mode.name(), word);
        }
        for (word, layout) in Layout::all() {
            assert_eq!(layout.name(), word);
        }
    }
}
