//! The readers of `map_image` and its operators. Parameters, meanings and defaults are those of
//! torchvision's v2 transforms; a bare value is the first parameter (`{ resize: 256 }`), a bare
//! word an operator with all its defaults (`random_horizontal_flip`).

use forebay_core::{DType, Result};

mod augment;
mod encode;

use super::cursor::{Cursor, Fields};
use crate::limits;
use crate::node::Value;
use crate::plan::{ImageOp, MapImage, OnError};

/// The operators, by name.
pub(crate) const OPS: &[&str] = &[
    "resize",
    "center_crop",
    "random_crop",
    "random_resized_crop",
    "random_horizontal_flip",
    "normalize",
    "random_vertical_flip",
    "pad",
    "grayscale",
    "color_jitter",
    "random_rotation",
    "random_erasing",
    "gaussian_blur",
    "trivial_augment_wide",
    "rand_augment",
    "random_grayscale",
    "random_invert",
    "random_posterize",
    "random_solarize",
    "random_adjust_sharpness",
    "random_autocontrast",
    "random_equalize",
    "random_affine",
    "to_dtype",
    "encode_image",
];

const KEYS: &[&str] = &["column", "ops", "mode", "dtype", "layout", "quality", "on_error"];

/// Element types that image operators write.
pub(crate) const DTYPES: [(&str, DType); 4] = [
    ("uint8", DType::UInt8),
    ("float16", DType::Float16),
    ("bfloat16", DType::BFloat16),
    ("float32", DType::Float32),
];

pub(crate) fn read_map_image(c: &Cursor<'_>) -> Result<MapImage> {
    let fields = c.fields(KEYS, "{ column: image, ops: [ { resize: [224, 224] } ] }")?;
    let column =
        fields.need("column", "image")?.text("the column of encoded images", "image")?.to_owned();
    let ops = match fields.get("ops") {
        None => Vec::new(),
        Some(c) => match c.items() {
            Some(items) => items.iter().map(read_op).collect::<Result<_>>()?,
            None => {
                return Err(c.expected(
                    "a list of operators",
                    "[ { resize: [224, 224] }, random_horizontal_flip ]",
                ));
            }
        },
    };
    let mut map = MapImage::new(column, ops);
    if let Some(c) = fields.get("mode") {
        map.mode = Some(c.word()?);
    }
    if let Some(c) = fields.get("dtype") {
        map.dtype = c.word_of(&DTYPES)?;
    }
    if let Some(c) = fields.get("layout") {
        map.layout = c.word()?;
    }
    if let Some(c) = fields.get("quality") {
        map.quality = c.word()?;
    }
    // `on_error: null` is YAML's nothing, but the design's word for zeros in place of bad rows.
    if let Some(c) = fields.even_null("on_error") {
        map.on_error = if c.node.value == Value::Null { OnError::Null } else { c.word()? };
    }
    Ok(map)
}

fn op_example(word: &str) -> &'static str {
    match word {
        "resize" => "resize: 256",
        "center_crop" => "center_crop: 224",
        "random_crop" => "random_crop: 32",
        "random_resized_crop" => "random_resized_crop: 224",
        "random_horizontal_flip" => "random_horizontal_flip: 0.5",
        "pad" => "pad: 4",
        "random_rotation" => "random_rotation: 30",
        "random_affine" => "random_affine: { degrees: 10, translate: [0.1, 0.1] }",
        "random_posterize" => "random_posterize: 4",
        "random_solarize" => "random_solarize: 128",
        "random_adjust_sharpness" => "random_adjust_sharpness: 2",
        "gaussian_blur" => "gaussian_blur: 5",
        "to_dtype" => "to_dtype: { dtype: float32, scale: true }",
        "encode_image" => encode::EXAMPLE,
        _ => "normalize: { mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] }",
    }
}

fn read_op(c: &Cursor<'_>) -> Result<ImageOp> {
    let (word, value, place) = c.tagged("an operator", OPS, &[], "resize: 256")?;
    match word {
        "random_horizontal_flip" => {
            return Ok(ImageOp::RandomHorizontalFlip { p: read_flip(value.as_ref())? });
        }
        "random_vertical_flip" => {
            return Ok(ImageOp::RandomVerticalFlip { p: read_flip(value.as_ref())? });
        }
        "random_grayscale" => {
            return Ok(ImageOp::RandomGrayscale { p: augment::read_p(value.as_ref(), 0.1)? });
        }
        "random_invert" => {
            return Ok(ImageOp::RandomInvert { p: read_flip(value.as_ref())? });
        }
        "random_autocontrast" => {
            return Ok(ImageOp::RandomAutocontrast { p: read_flip(value.as_ref())? });
        }
        "random_equalize" => {
            return Ok(ImageOp::RandomEqualize { p: read_flip(value.as_ref())? });
        }
        "grayscale" => return augment::read_grayscale(value.as_ref()),
        "color_jitter" => return augment::read_color_jitter(value.as_ref()),
        "random_erasing" => return augment::read_random_erasing(value.as_ref()),
        "trivial_augment_wide" => return augment::read_trivial_augment_wide(value.as_ref()),
        "rand_augment" => return augment::read_rand_augment(value.as_ref()),
        _ => {}
    }
    let example = op_example(word);
    let Some(c) = value else {
        let needs = match word {
            "normalize" => "mean and std",
            "pad" => "padding",
            "random_rotation" | "random_affine" => "degrees",
            "random_posterize" => "bits",
            "random_solarize" => "a threshold",
            "random_adjust_sharpness" => "a sharpness_factor",
            "gaussian_blur" => "a kernel_size",
            "to_dtype" => "a dtype",
            "encode_image" => "a format",
            _ => "a size",
        };
        return Err(place.error(format!("{word} needs {needs}"), format!("for example {example}")));
    };
    match word {
        "resize" => read_resize(&c),
        "center_crop" => read_center_crop(&c),
        "random_crop" => read_random_crop(&c),
        "random_resized_crop" => read_random_resized_crop(&c),
        "pad" => augment::read_pad(&c),
        "random_rotation" => augment::read_random_rotation(&c),
        "gaussian_blur" => augment::read_gaussian_blur(&c),
        "random_posterize" => augment::read_random_posterize(&c),
        "random_solarize" => augment::read_random_solarize(&c),
        "random_adjust_sharpness" => augment::read_random_adjust_sharpness(&c),
        "random_affine" => augment::read_random_affine(&c),
        "to_dtype" => augment::read_to_dtype(&c),
        "encode_image" => encode::read_encode_image(&c),
        _ => read_normalize(&c),
    }
}

/// The size of an operator (a bare value, or the key `size`), and the other parameters.
fn sized<'n>(
    c: &Cursor<'n>,
    known: &'static [&'static str],
) -> Result<(Cursor<'n>, Option<Fields<'n>>)> {
    if !c.is_map() {
        return Ok((c.clone(), None));
    }
    let fields = c.fields(known, "224")?;
    Ok((fields.need("size", "224")?, Some(fields)))
}

/// One or two numbers of pixels.
fn edges(c: &Cursor<'_>) -> Result<Vec<u32>> {
    match c.items() {
        None => Ok(vec![c.small(limits::EDGE, "224")?]),
        Some(items) if items.len() == 1 || items.len() == 2 => {
            items.iter().map(|i| i.small(limits::EDGE, "224")).collect()
        }
        Some(_) => Err(c.expected("one number or [height, width]", "[224, 224]")),
    }
}

/// Height and width; one number is both.
fn rectangle(c: &Cursor<'_>) -> Result<[u32; 2]> {
    Ok(match edges(c)?.as_slice() {
        [h, w] => [*h, *w],
        // `edges` gives one or two.
        other => [other.first().copied().unwrap_or(1); 2],
    })
}

fn numbers(c: &Cursor<'_>, what: &str, example: &str) -> Result<Vec<f64>> {
    match c.items() {
        None => Ok(vec![c.number(what, example)?]),
        Some(items) if items.is_empty() => Err(c.expected(what, example)),
        Some(items) => items.iter().map(|i| i.number("a number", "0.5")).collect(),
    }
}

fn pair(c: &Cursor<'_>, example: &str) -> Result<[f64; 2]> {
    match c.items().as_deref() {
        Some([low, high]) => Ok([low.number("a number", "0.5")?, high.number("a number", "1")?]),
        _ => Err(c.expected("[lower, upper]", example)),
    }
}

fn read_resize(c: &Cursor<'_>) -> Result<ImageOp> {
    let (size, rest) = sized(c, &["size", "interpolation", "max_size", "antialias"])?;
    let get = |name| rest.as_ref().and_then(|f| f.get(name));
    Ok(ImageOp::Resize {
        size: edges(&size)?,
        interpolation: get("interpolation").map(|c| c.word()).transpose()?.unwrap_or_default(),
        max_size: get("max_size").map(|c| c.small(limits::EDGE, "512")).transpose()?,
        antialias: get("antialias").map(|c| c.flag()).transpose()?.unwrap_or(true),
    })
}

fn read_center_crop(c: &Cursor<'_>) -> Result<ImageOp> {
    let (size, _) = sized(c, &["size"])?;
    Ok(ImageOp::CenterCrop { size: rectangle(&size)? })
}

fn read_random_crop(c: &Cursor<'_>) -> Result<ImageOp> {
    let (size, rest) = sized(c, &["size", "padding", "pad_if_needed", "fill", "padding_mode"])?;
    let get = |name| rest.as_ref().and_then(|f| f.get(name));
    let fill = get("fill").map(|c| c.small(limits::PIXEL, "0")).transpose()?.unwrap_or(0);
    Ok(ImageOp::RandomCrop {
        size: rectangle(&size)?,
        padding: get("padding").map(|c| read_padding(&c)).transpose()?,
        pad_if_needed: get("pad_if_needed").map(|c| c.flag()).transpose()?.unwrap_or(false),
        // The range makes it fit.
        fill: u8::try_from(fill).unwrap_or(u8::MAX),
        padding_mode: get("padding_mode").map(|c| c.word()).transpose()?.unwrap_or_default(),
    })
}

/// One number for all sides, two for left and right, top and bottom, four in torchvision's order.
fn read_padding(c: &Cursor<'_>) -> Result<[u32; 4]> {
    let side = |c: &Cursor<'_>| c.small(limits::PADDING, "4");
    let Some(items) = c.items() else { return Ok([side(c)?; 4]) };
    match items.as_slice() {
        [all] => Ok([side(all)?; 4]),
        [x, y] => {
            let (x, y) = (side(x)?, side(y)?);
            Ok([x, y, x, y])
        }
        [left, top, right, bottom] => Ok([side(left)?, side(top)?, side(right)?, side(bottom)?]),
        _ => Err(c.expected(
            "one number, [left and right, top and bottom] or [left, top, right, bottom]",
            "4",
        )),
    }
}

fn read_random_resized_crop(c: &Cursor<'_>) -> Result<ImageOp> {
    let (size, rest) = sized(c, &["size", "scale", "ratio", "interpolation", "antialias"])?;
    let get = |name| rest.as_ref().and_then(|f| f.get(name));
    Ok(ImageOp::RandomResizedCrop {
        size: rectangle(&size)?,
        scale: get("scale").map(|c| pair(&c, "[0.08, 1.0]")).transpose()?.unwrap_or(ImageOp::SCALE),
        ratio: get("ratio")
            .map(|c| pair(&c, "[0.75, 1.3333333333333333]"))
            .transpose()?
            .unwrap_or(ImageOp::RATIO),
        interpolation: get("interpolation").map(|c| c.word()).transpose()?.unwrap_or_default(),
        antialias: get("antialias").map(|c| c.flag()).transpose()?.unwrap_or(true),
    })
}

fn read_flip(value: Option<&Cursor<'_>>) -> Result<f64> {
    augment::read_p(value, 0.5)
}

fn read_normalize(c: &Cursor<'_>) -> Result<ImageOp> {
    let fields =
        c.fields(&["mean", "std"], "{ mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] }")?;
    let want = "one number for each channel";
    Ok(ImageOp::Normalize {
        mean: numbers(
            &fields.need("mean", "[0.485, 0.456, 0.406]")?,
            want,
            "[0.485, 0.456, 0.406]",
        )?,
        std: numbers(&fields.need("std", "[0.229, 0.224, 0.225]")?, want, "[0.229, 0.224, 0.225]")?,
    })
}
