//! The reader of `encode_image`: a format, alone or with its parameters.

use forebay_core::{Result, suggest};

use super::{Cursor, Fields};
use crate::limits;
use crate::node::Value;
use crate::plan::{Encoding, ImageOp};

pub(super) const EXAMPLE: &str = "encode_image: { format: JPEG, quality: 90 }";

/// The parameters of all formats.
const KEYS: &[&str] = &[
    "format",
    "quality",
    "subsampling",
    "progressive",
    "optimize",
    "compress_level",
    "lossless",
    "method",
    "exact",
];

pub(super) fn read_encode_image(c: &Cursor<'_>) -> Result<ImageOp> {
    if !c.is_map() {
        return Ok(ImageOp::encode_image(read_format(c)?));
    }
    let fields = c.fields(KEYS, "{ format: JPEG, quality: 90 }")?;
    let mut encoding = read_format(&fields.need("format", "JPEG")?)?;
    let own = encoding.parameters();
    for key in KEYS.iter().filter(|key| **key != "format" && !own.contains(key)) {
        if let Some(c) = fields.get(key) {
            let format = encoding.format();
            let message = format!("{format} has no parameter {key}");
            return Err(c.error(message, format!("those of {format}: {}", own.join(", "))));
        }
    }
    match &mut encoding {
        Encoding::Jpeg { quality, subsampling, progressive, optimize } => {
            number(&fields, "quality", 1..=100, "90", quality)?;
            if let Some(c) = fields.get("subsampling") {
                *subsampling = c.word()?;
            }
            flag(&fields, "progressive", progressive)?;
            flag(&fields, "optimize", optimize)?;
        }
        Encoding::Png { compress_level } => {
            number(&fields, "compress_level", 0..=9, "6", compress_level)?;
        }
        Encoding::WebP { quality, lossless, method, exact } => {
            number(&fields, "quality", 0..=100, "80", quality)?;
            flag(&fields, "lossless", lossless)?;
            number(&fields, "method", 0..=6, "4", method)?;
            flag(&fields, "exact", exact)?;
        }
    }
    Ok(ImageOp::encode_image(encoding))
}

/// Pillow takes lower case too.
fn read_format(c: &Cursor<'_>) -> Result<Encoding> {
    let want = limits::one_of(&Encoding::FORMATS);
    let Value::Str(word) = &c.node.value else { return Err(c.expected(&want, "JPEG")) };
    match word.to_ascii_uppercase().as_str() {
        "JPEG" => Ok(Encoding::jpeg()),
        "PNG" => Ok(Encoding::png()),
        "WEBP" => Ok(Encoding::webp()),
        other => Err(c.error(
            format!("expected {want}, found {}", c.node.describe()),
            suggest::hint(other, Encoding::FORMATS),
        )),
    }
}

fn number(
    fields: &Fields<'_>,
    key: &str,
    range: std::ops::RangeInclusive<u32>,
    example: &str,
    into: &mut u8,
) -> Result<()> {
    if let Some(c) = fields.get(key) {
        // The range makes it fit.
        *into = u8::try_from(c.small(range, example)?).unwrap_or(u8::MAX);
    }
    Ok(())
}

fn flag(fields: &Fields<'_>, key: &str, into: &mut bool) -> Result<()> {
    if let Some(c) = fields.get(key) {
        *into = c.flag()?;
    }
    Ok(())
}
