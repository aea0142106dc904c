//! The readers of the operators that change colours and values, or that turn and pad.

use forebay_core::Result;

use super::{Cursor, DTYPES, Fields, edges, numbers, pair, read_padding};
use crate::limits;
use crate::node::Value;
use crate::plan::{Erase, ImageOp, Interpolation};

/// The parameters of one operator: a mapping, a bare value for the first of them, or nothing.
pub(super) struct Parameters<'n> {
    fields: Option<Fields<'n>>,
    bare: Option<(&'static str, Cursor<'n>)>,
}

impl<'n> Parameters<'n> {
    pub fn new(
        value: Option<&Cursor<'n>>,
        known: &'static [&'static str],
        example: &str,
    ) -> Result<Self> {
        Ok(match value {
            None => Self { fields: None, bare: None },
            Some(c) if c.is_map() => Self { fields: Some(c.fields(known, example)?), bare: None },
            Some(c) => Self { fields: None, bare: known.first().map(|key| (*key, c.clone())) },
        })
    }

    pub fn get(&self, key: &str) -> Option<Cursor<'n>> {
        match (&self.fields, &self.bare) {
            (Some(fields), _) => fields.get(key),
            (None, Some((first, value))) if *first == key => Some(value.clone()),
            _ => None,
        }
    }

    /// What `read` makes of a parameter, or its default.
    pub fn or<T>(
        &self,
        key: &str,
        default: T,
        read: impl FnOnce(&Cursor<'n>) -> Result<T>,
    ) -> Result<T> {
        self.get(key).map_or(Ok(default), |c| read(&c))
    }

    /// What `read` makes of a parameter, if it is there.
    fn some<T>(&self, key: &str, read: impl FnOnce(&Cursor<'n>) -> Result<T>) -> Result<Option<T>> {
        self.get(key).map(|c| read(&c)).transpose()
    }

    /// A parameter that must be there. A bare value is there.
    fn need(&self, of: &Cursor<'n>, key: &str, example: &str) -> Result<Cursor<'n>> {
        match &self.fields {
            Some(fields) => fields.need(key, example),
            None => Ok(of.clone()),
        }
    }
}

/// One value from 0 to 255, or one for each channel.
fn fill(c: &Cursor<'_>) -> Result<Vec<u8>> {
    // The range makes it fit.
    let byte =
        |c: &Cursor<'_>| c.small(limits::PIXEL, "0").map(|v| u8::try_from(v).unwrap_or(u8::MAX));
    match c.items() {
        None => Ok(vec![byte(c)?]),
        Some(items) if items.is_empty() => Err(c.expected("a number or one for each channel", "0")),
        Some(items) => items.iter().map(byte).collect(),
    }
}

/// `[lower, upper]`, or one number `x` that means `around(x)`.
fn spread(c: &Cursor<'_>, around: impl Fn(f64) -> [f64; 2], example: &str) -> Result<[f64; 2]> {
    if c.items().is_some() {
        return pair(c, example);
    }
    let want = "a number that is not negative, or [lower, upper]";
    match c.number(want, example)? {
        x if x >= 0.0 => Ok(around(x)),
        _ => Err(c.expected(want, example)),
    }
}

fn p(given: &Parameters<'_>, default: f64) -> Result<f64> {
    given.or("p", default, |c| c.number("a probability from 0 to 1", "0.5"))
}

/// The probability that is an operator's only parameter.
pub(super) fn read_p(value: Option<&Cursor<'_>>, default: f64) -> Result<f64> {
    p(&Parameters::new(value, &["p"], "0.5")?, default)
}

pub(super) fn read_random_posterize(c: &Cursor<'_>) -> Result<ImageOp> {
    let given = Parameters::new(Some(c), &["bits", "p"], "4")?;
    let bits = given.need(c, "bits", "4")?.small(0..=8, "4")?;
    // The range makes it fit.
    Ok(ImageOp::RandomPosterize { bits: bits as u8, p: p(&given, 0.5)? })
}

pub(super) fn read_random_solarize(c: &Cursor<'_>) -> Result<ImageOp> {
    let given = Parameters::new(Some(c), &["threshold", "p"], "128")?;
    let threshold = given.need(c, "threshold", "128")?.number("a number, 255 at most", "128")?;
    Ok(ImageOp::RandomSolarize { threshold, p: p(&given, 0.5)? })
}

pub(super) fn read_random_adjust_sharpness(c: &Cursor<'_>) -> Result<ImageOp> {
    let given = Parameters::new(Some(c), &["sharpness_factor", "p"], "2")?;
    let factor = given.need(c, "sharpness_factor", "2")?.number("a number, 0 or more", "2")?;
    Ok(ImageOp::RandomAdjustSharpness { sharpness_factor: factor, p: p(&given, 0.5)? })
}

pub(super) fn read_random_affine(c: &Cursor<'_>) -> Result<ImageOp> {
    let known = &["degrees", "translate", "scale", "shear", "interpolation", "fill", "center"];
    let given = Parameters::new(Some(c), known, "10")?;
    let degrees = given.need(c, "degrees", "10")?;
    Ok(ImageOp::RandomAffine {
        degrees: spread(&degrees, |x| [-x, x], "10")?,
        translate: given.some("translate", |c| pair(c, "[0.1, 0.1]"))?,
        scale: given.some("scale", |c| pair(c, "[0.9, 1.1]"))?,
        shear: given.some("shear", |c| match c.items().as_deref() {
            Some([a, b, c, d]) => {
                let n = |c: &Cursor<'_>| c.number("a number of degrees", "10");
                Ok([n(a)?, n(b)?, n(c)?, n(d)?])
            }
            _ => spread(c, |x| [-x, x], "10").map(|[low, high]| [low, high, 0.0, 0.0]),
        })?,
        interpolation: given.or("interpolation", Interpolation::Nearest, |c| c.word())?,
        fill: given.or("fill", vec![0], fill)?,
        center: given.some("center", |c| pair(c, "[112, 112]"))?,
    })
}

pub(super) fn read_pad(c: &Cursor<'_>) -> Result<ImageOp> {
    let given = Parameters::new(Some(c), &["padding", "fill", "padding_mode"], "4")?;
    Ok(ImageOp::Pad {
        padding: read_padding(&given.need(c, "padding", "4")?)?,
        fill: given.or("fill", vec![0], fill)?,
        padding_mode: given.or("padding_mode", Default::default(), |c| c.word())?,
    })
}

pub(super) fn read_grayscale(value: Option<&Cursor<'_>>) -> Result<ImageOp> {
    let given = Parameters::new(value, &["num_output_channels"], "3")?;
    let channels = given.or("num_output_channels", 1, |c| match c.small(1..=3, "3")? {
        n @ (1 | 3) => Ok(n as u8),
        _ => Err(c.expected("1 or 3", "3")),
    })?;
    Ok(ImageOp::Grayscale { num_output_channels: channels })
}

pub(super) fn read_color_jitter(value: Option<&Cursor<'_>>) -> Result<ImageOp> {
    let known = &["brightness", "contrast", "saturation", "hue"];
    let given = Parameters::new(value, known, "{ brightness: 0.4 }")?;
    // A range that is only the factor which changes nothing is none.
    let real = |range: Option<[f64; 2]>, nothing: f64| range.filter(|r| *r != [nothing; 2]);
    let factor = |key: &str| -> Result<Option<[f64; 2]>> {
        let around = |x: f64| [(1.0 - x).max(0.0), 1.0 + x];
        Ok(real(given.some(key, |c| spread(c, around, "0.4"))?, 1.0))
    };
    Ok(ImageOp::ColorJitter {
        brightness: factor("brightness")?,
        contrast: factor("contrast")?,
        saturation: factor("saturation")?,
        hue: real(given.some("hue", |c| spread(c, |x| [-x, x], "0.1"))?, 0.0),
    })
}

pub(super) fn read_random_rotation(c: &Cursor<'_>) -> Result<ImageOp> {
    let known = &["degrees", "interpolation", "expand", "center", "fill"];
    let given = Parameters::new(Some(c), known, "30")?;
    let degrees = given.need(c, "degrees", "30")?;
    Ok(ImageOp::RandomRotation {
        degrees: spread(&degrees, |x| [-x, x], "30")?,
        interpolation: given.or("interpolation", Interpolation::Nearest, |c| c.word())?,
        expand: given.or("expand", false, |c| c.flag())?,
        center: given.some("center", |c| pair(c, "[112, 112]"))?,
        fill: given.or("fill", vec![0], fill)?,
    })
}

pub(super) fn read_random_erasing(value: Option<&Cursor<'_>>) -> Result<ImageOp> {
    let given = Parameters::new(value, &["p", "scale", "ratio", "value"], "0.5")?;
    Ok(ImageOp::RandomErasing {
        p: p(&given, 0.5)?,
        scale: given.or("scale", ImageOp::ERASED, |c| pair(c, "[0.02, 0.33]"))?,
        ratio: given.or("ratio", ImageOp::ERASED_RATIO, |c| pair(c, "[0.3, 3.3]"))?,
        value: given.or("value", Erase::Value(vec![0.0]), |c| match &c.node.value {
            Value::Str(word) if word == "random" => Ok(Erase::Random),
            _ => numbers(c, "a number, one for each channel, or random", "0").map(Erase::Value),
        })?,
    })
}

pub(super) fn read_gaussian_blur(c: &Cursor<'_>) -> Result<ImageOp> {
    let given = Parameters::new(Some(c), &["kernel_size", "sigma"], "5")?;
    let size = edges(&given.need(c, "kernel_size", "5")?)?;
    Ok(ImageOp::GaussianBlur {
        kernel_size: match size.as_slice() {
            [w, h] => [*w, *h],
            // `edges` gives one or two.
            other => [other.first().copied().unwrap_or(1); 2],
        },
        sigma: given.or("sigma", ImageOp::SIGMA, |c| spread(c, |x| [x, x], "[0.1, 2.0]"))?,
    })
}

pub(super) fn read_trivial_augment_wide(value: Option<&Cursor<'_>>) -> Result<ImageOp> {
    let known = &["num_magnitude_bins", "interpolation", "fill"];
    let given = Parameters::new(value, known, "31")?;
    Ok(ImageOp::TrivialAugmentWide {
        num_magnitude_bins: given.or("num_magnitude_bins", ImageOp::MAGNITUDE_BINS, bins)?,
        interpolation: given.or("interpolation", Interpolation::Nearest, |c| c.word())?,
        fill: given.some("fill", fill)?,
    })
}

pub(super) fn read_rand_augment(value: Option<&Cursor<'_>>) -> Result<ImageOp> {
    let known = &["num_ops", "magnitude", "num_magnitude_bins", "interpolation", "fill"];
    let given = Parameters::new(value, known, "2")?;
    Ok(ImageOp::RandAugment {
        num_ops: given.or("num_ops", 2, |c| c.small(0..=100, "2"))?,
        magnitude: given.or("magnitude", 9, |c| c.small(0..=u32::MAX, "9"))?,
        num_magnitude_bins: given.or("num_magnitude_bins", ImageOp::MAGNITUDE_BINS, bins)?,
        interpolation: given.or("interpolation", Interpolation::Nearest, |c| c.word())?,
        fill: given.some("fill", fill)?,
    })
}

fn bins(c: &Cursor<'_>) -> Result<u32> {
    c.small(2..=u32::MAX, "31")
}

pub(super) fn read_to_dtype(c: &Cursor<'_>) -> Result<ImageOp> {
    let example = "{ dtype: float32, scale: true }";
    let given = Parameters::new(Some(c), &["dtype", "scale"], example)?;
    Ok(ImageOp::ToDtype {
        dtype: given.need(c, "dtype", "float32")?.word_of(&DTYPES)?,
        scale: given.or("scale", false, |c| c.flag())?,
    })
}
