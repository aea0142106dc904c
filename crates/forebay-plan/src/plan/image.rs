//! The image operators as data: torchvision v2's names, parameters and defaults.

use forebay_core::DType;

use super::{Encoding, ImageMode, Interpolation, PaddingMode};

/// One image operator, with torchvision v2's parameters and meanings.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ImageOp {
    /// Resize. One number in `size` is the shorter edge; two are height and width.
    Resize {
        /// One or two numbers, in pixels.
        size: Vec<u32>,
        /// Default: bilinear.
        interpolation: Interpolation,
        /// Upper limit of the longer edge, with a one-number size only.
        max_size: Option<u32>,
        /// Low-pass before shrinking. Default: true.
        antialias: bool,
    },
    /// The middle of the picture; a smaller picture is padded with zeros.
    CenterCrop {
        /// Height and width.
        size: [u32; 2],
    },
    /// A part at a random place.
    RandomCrop {
        /// Height and width.
        size: [u32; 2],
        /// Left, top, right, bottom. Default: none.
        padding: Option<[u32; 4]>,
        /// Pad when the picture is smaller than `size`. Default: false (an error).
        pad_if_needed: bool,
        /// Value of the padding, 0–255. Default: 0.
        fill: u8,
        /// Default: constant.
        padding_mode: PaddingMode,
    },
    /// A part of random area and aspect ratio, resized to `size`.
    RandomResizedCrop {
        /// Height and width.
        size: [u32; 2],
        /// Share of the area, lower and upper. Default: 0.08 to 1.
        scale: [f64; 2],
        /// Aspect ratio (width over height), lower and upper. Default: 3/4 to 4/3.
        ratio: [f64; 2],
        /// Default: bilinear.
        interpolation: Interpolation,
        /// Low-pass before shrinking. Default: true.
        antialias: bool,
    },
    /// Mirrored left to right with probability `p`.
    RandomHorizontalFlip {
        /// Default: 0.5.
        p: f64,
    },
    /// Subtract the mean and divide by the standard deviation, per channel, with a float dtype.
    /// Values are 0–1 before, unless [`ImageOp::ToDtype`] says otherwise. Only
    /// [`ImageOp::RandomErasing`] may follow.
    Normalize {
        /// One value per channel.
        mean: Vec<f64>,
        /// One value per channel; none may be 0.
        std: Vec<f64>,
    },
    /// Turned upside down with probability `p`.
    RandomVerticalFlip {
        /// Default: 0.5.
        p: f64,
    },
    /// Pixels added around the picture.
    Pad {
        /// Left, top, right, bottom, in pixels.
        padding: [u32; 4],
        /// One value for all channels or one for each, 0–255. Default: 0.
        fill: Vec<u8>,
        /// Default: constant.
        padding_mode: PaddingMode,
    },
    /// Luminance, in one channel or three equal ones.
    Grayscale {
        /// 1 or 3. Default: 1.
        num_output_channels: u8,
    },
    /// Brightness, contrast, saturation and hue by random factors, in random order.
    ColorJitter {
        /// Lower and upper factor. Default: left as it is.
        brightness: Option<[f64; 2]>,
        /// Lower and upper factor. Default: left as it is.
        contrast: Option<[f64; 2]>,
        /// Lower and upper factor. Default: left as it is.
        saturation: Option<[f64; 2]>,
        /// Lower and upper shift, in turns of the colour circle, within -0.5 to 0.5. Default: left
        /// as it is.
        hue: Option<[f64; 2]>,
    },
    /// Turned by a random angle.
    RandomRotation {
        /// Lower and upper angle in degrees, counter-clockwise.
        degrees: [f64; 2],
        /// Nearest or bilinear. Default: nearest.
        interpolation: Interpolation,
        /// Make the picture as large as the turned one. Default: false, keep its size.
        expand: bool,
        /// What stays in place: x and y in pixels from the upper left corner. Default: the middle.
        center: Option<[f64; 2]>,
        /// What lies outside: one value or one for each channel, 0–255. Default: 0.
        fill: Vec<u8>,
    },
    /// A random rectangle overwritten, with probability `p`.
    RandomErasing {
        /// Default: 0.5.
        p: f64,
        /// Share of the picture's area, lower and upper. Default: 0.02 to 0.33.
        scale: [f64; 2],
        /// Aspect ratio (height over width), lower and upper. Default: 0.3 to 3.3.
        ratio: [f64; 2],
        /// What is written. Default: 0.
        value: Erase,
    },
    /// Blurred with a Gaussian of random width.
    GaussianBlur {
        /// Width and height of the kernel in pixels; odd.
        kernel_size: [u32; 2],
        /// Standard deviation in pixels, lower and upper. Default: 0.1 to 2.
        sigma: [f64; 2],
    },
    /// One random operation of random strength (Müller and Hutter, 2021).
    TrivialAugmentWide {
        /// How many strengths there are. Default: 31.
        num_magnitude_bins: u32,
        /// Nearest or bilinear. Default: nearest.
        interpolation: Interpolation,
        /// What lies outside: one value or one for each channel, 0–255. Default: none, which is 0
        /// without blending at the border.
        fill: Option<Vec<u8>>,
    },
    /// Random operations of one strength, one after the other (Cubuk et al., 2019).
    RandAugment {
        /// How many operations. Default: 2.
        num_ops: u32,
        /// Their strength, from 0. Default: 9.
        magnitude: u32,
        /// How many strengths there are. Default: 31.
        num_magnitude_bins: u32,
        /// Nearest or bilinear. Default: nearest.
        interpolation: Interpolation,
        /// What lies outside: one value or one for each channel, 0–255. Default: none, which is 0
        /// without blending at the border.
        fill: Option<Vec<u8>>,
    },
    /// Luminance in all channels, with probability `p`.
    RandomGrayscale {
        /// Default: 0.1.
        p: f64,
    },
    /// The negative, with probability `p`.
    RandomInvert {
        /// Default: 0.5.
        p: f64,
    },
    /// The upper bits alone, with probability `p`.
    RandomPosterize {
        /// Bits that are kept, 0 to 8.
        bits: u8,
        /// Default: 0.5.
        p: f64,
    },
    /// Values from a threshold on inverted, with probability `p`.
    RandomSolarize {
        /// The least value that is inverted, 255 at most.
        threshold: f64,
        /// Default: 0.5.
        p: f64,
    },
    /// Sharpened or blurred by a factor, with probability `p`.
    RandomAdjustSharpness {
        /// 0 blurs, 1 leaves the picture as it is, more sharpens.
        sharpness_factor: f64,
        /// Default: 0.5.
        p: f64,
    },
    /// Every channel spread over 0–255, with probability `p`.
    RandomAutocontrast {
        /// Default: 0.5.
        p: f64,
    },
    /// All values made about equally frequent, with probability `p`.
    RandomEqualize {
        /// Default: 0.5.
        p: f64,
    },
    /// Turned, shifted, scaled and sheared at random.
    RandomAffine {
        /// Lower and upper angle in degrees, clockwise.
        degrees: [f64; 2],
        /// Greatest shift, as shares of width and height. Default: none.
        translate: Option<[f64; 2]>,
        /// Lower and upper factor. Default: none.
        scale: Option<[f64; 2]>,
        /// Lower and upper shear along x, and along y, in degrees. Default: none.
        shear: Option<[f64; 4]>,
        /// Nearest or bilinear. Default: nearest.
        interpolation: Interpolation,
        /// What lies outside: one value or one for each channel, 0–255. Default: 0.
        fill: Vec<u8>,
        /// What stays in place: x and y in pixels from the upper left corner. Default: the middle.
        center: Option<[f64; 2]>,
    },
    /// The element type of the output. Only [`ImageOp::Normalize`] and [`ImageOp::RandomErasing`]
    /// may follow.
    ToDtype {
        /// The type; that of the whole `map_image`.
        dtype: DType,
        /// Whether floats are 0–1. Default: false, they are 0–255.
        scale: bool,
    },
    /// Written back to bytes, which take the place of the picture's own: for jobs, and the last
    /// operator. Of the source's metadata nothing is kept.
    EncodeImage {
        /// Format and parameters.
        encoding: Encoding,
    },
}

/// What [`ImageOp::RandomErasing`] writes.
#[derive(Clone, Debug, PartialEq)]
pub enum Erase {
    /// One value for all channels, or one for each, in the units of the values at that point.
    Value(Vec<f64>),
    /// Noise of mean 0 and standard deviation 1, each element on its own.
    Random,
}

impl ImageOp {
    /// The default `scale` of [`ImageOp::RandomResizedCrop`].
    pub const SCALE: [f64; 2] = [0.08, 1.0];
    /// The default `ratio` of [`ImageOp::RandomResizedCrop`].
    pub const RATIO: [f64; 2] = [3.0 / 4.0, 4.0 / 3.0];
    /// The default `scale` of [`ImageOp::RandomErasing`].
    pub const ERASED: [f64; 2] = [0.02, 0.33];
    /// The default `ratio` of [`ImageOp::RandomErasing`].
    pub const ERASED_RATIO: [f64; 2] = [0.3, 3.3];
    /// The default `sigma` of [`ImageOp::GaussianBlur`].
    pub const SIGMA: [f64; 2] = [0.1, 2.0];
    /// The default number of strengths of the automatic augmentations.
    pub const MAGNITUDE_BINS: u32 = 31;

    /// [`ImageOp::Resize`] with the defaults; one number is the shorter edge, two are height and
    /// width.
    pub fn resize(size: &[u32]) -> Self {
        Self::Resize {
            size: size.to_vec(),
            interpolation: Interpolation::default(),
            max_size: None,
            antialias: true,
        }
    }

    /// [`ImageOp::CenterCrop`] to height and width.
    pub fn center_crop(size: [u32; 2]) -> Self {
        Self::CenterCrop { size }
    }

    /// [`ImageOp::RandomCrop`] to height and width with the defaults.
    pub fn random_crop(size: [u32; 2]) -> Self {
        Self::RandomCrop {
            size,
            padding: None,
            pad_if_needed: false,
            fill: 0,
            padding_mode: PaddingMode::default(),
        }
    }

    /// [`ImageOp::RandomResizedCrop`] to height and width with the defaults.
    pub fn random_resized_crop(size: [u32; 2]) -> Self {
        Self::RandomResizedCrop {
            size,
            scale: Self::SCALE,
            ratio: Self::RATIO,
            interpolation: Interpolation::default(),
            antialias: true,
        }
    }

    /// [`ImageOp::RandomHorizontalFlip`] with probability one half.
    pub fn random_horizontal_flip() -> Self {
        Self::RandomHorizontalFlip { p: 0.5 }
    }

    /// [`ImageOp::Normalize`] with one value for each channel.
    pub fn normalize(mean: &[f64], std: &[f64]) -> Self {
        Self::Normalize { mean: mean.to_vec(), std: std.to_vec() }
    }

    /// [`ImageOp::ColorJitter`] by factors from `1 - x` (0 at least) to `1 + x`, and a hue shifted
    /// by up to `hue` either way; 0 leaves a quantity as it is.
    pub fn color_jitter(brightness: f64, contrast: f64, saturation: f64, hue: f64) -> Self {
        let around = |x: f64| (x != 0.0).then_some([(1.0 - x).max(0.0), 1.0 + x]);
        Self::ColorJitter {
            brightness: around(brightness),
            contrast: around(contrast),
            saturation: around(saturation),
            hue: (hue != 0.0).then_some([-hue, hue]),
        }
    }

    /// [`ImageOp::RandomErasing`] with the defaults.
    pub fn random_erasing() -> Self {
        Self::RandomErasing {
            p: 0.5,
            scale: Self::ERASED,
            ratio: Self::ERASED_RATIO,
            value: Erase::Value(vec![0.0]),
        }
    }

    /// [`ImageOp::EncodeImage`] in a format: `encode_image(Encoding::jpeg().with_quality(90))`.
    pub fn encode_image(encoding: Encoding) -> Self {
        Self::EncodeImage { encoding }
    }

    /// How the picture is written back, where that is what the operator does.
    pub fn encoding(&self) -> Option<&Encoding> {
        match self {
            Self::EncodeImage { encoding } => Some(encoding),
            _ => None,
        }
    }

    /// [`ImageOp::TrivialAugmentWide`] with the defaults.
    pub fn trivial_augment_wide() -> Self {
        Self::TrivialAugmentWide {
            num_magnitude_bins: Self::MAGNITUDE_BINS,
            interpolation: Interpolation::Nearest,
            fill: None,
        }
    }

    /// [`ImageOp::RandAugment`] with the defaults.
    pub fn rand_augment() -> Self {
        Self::RandAugment {
            num_ops: 2,
            magnitude: 9,
            num_magnitude_bins: Self::MAGNITUDE_BINS,
            interpolation: Interpolation::Nearest,
            fill: None,
        }
    }

    /// Whether the operator draws random numbers.
    pub fn is_random(&self) -> bool {
        match self {
            Self::Resize { .. }
            | Self::CenterCrop { .. }
            | Self::Normalize { .. }
            | Self::Pad { .. }
            | Self::Grayscale { .. }
            | Self::ToDtype { .. }
            | Self::EncodeImage { .. } => false,
            Self::RandomCrop { .. }
            | Self::RandomResizedCrop { .. }
            | Self::RandomHorizontalFlip { .. }
            | Self::RandomVerticalFlip { .. }
            | Self::ColorJitter { .. }
            | Self::RandomRotation { .. }
            | Self::RandomErasing { .. }
            | Self::GaussianBlur { .. }
            | Self::TrivialAugmentWide { .. }
            | Self::RandAugment { .. }
            | Self::RandomGrayscale { .. }
            | Self::RandomInvert { .. }
            | Self::RandomPosterize { .. }
            | Self::RandomSolarize { .. }
            | Self::RandomAdjustSharpness { .. }
            | Self::RandomAutocontrast { .. }
            | Self::RandomEqualize { .. }
            | Self::RandomAffine { .. } => true,
        }
    }

    /// The mode of a picture after the operator.
    pub fn mode_after(&self, mode: Option<ImageMode>) -> Option<ImageMode> {
        match self {
            Self::Grayscale { num_output_channels: 1 } => Some(ImageMode::L),
            Self::Grayscale { .. } => Some(ImageMode::Rgb),
            _ => mode,
        }
    }

    /// The word for this operator in job files; Python's class is the same in camel case.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Resize { .. } => "resize",
            Self::CenterCrop { .. } => "center_crop",
            Self::RandomCrop { .. } => "random_crop",
            Self::RandomResizedCrop { .. } => "random_resized_crop",
            Self::RandomHorizontalFlip { .. } => "random_horizontal_flip",
            Self::Normalize { .. } => "normalize",
            Self::RandomVerticalFlip { .. } => "random_vertical_flip",
            Self::Pad { .. } => "pad",
            Self::Grayscale { .. } => "grayscale",
            Self::ColorJitter { .. } => "color_jitter",
            Self::RandomRotation { .. } => "random_rotation",
            Self::RandomErasing { .. } => "random_erasing",
            Self::GaussianBlur { .. } => "gaussian_blur",
            Self::TrivialAugmentWide { .. } => "trivial_augment_wide",
            Self::RandAugment { .. } => "rand_augment",
            Self::RandomGrayscale { .. } => "random_grayscale",
            Self::RandomInvert { .. } => "random_invert",
            Self::RandomPosterize { .. } => "random_posterize",
            Self::RandomSolarize { .. } => "random_solarize",
            Self::RandomAdjustSharpness { .. } => "random_adjust_sharpness",
            Self::RandomAutocontrast { .. } => "random_autocontrast",
            Self::RandomEqualize { .. } => "random_equalize",
            Self::RandomAffine { .. } => "random_affine",
            Self::ToDtype { .. } => "to_dtype",
            Self::EncodeImage { .. } => "encode_image",
        }
    }
}
