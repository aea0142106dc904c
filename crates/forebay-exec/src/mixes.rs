//! Images and labels that are mixed within each batch: what they must be.

use std::sync::Arc;

use arrow_schema::{DataType, Field};
use forebay_core::suggest::cast_to;
use forebay_core::{DType, Error, ErrorKind, Result};
use forebay_ops::mix::Mixer;
use forebay_plan::{Fill, Normalized};

use crate::outputs::{DenseSpec, LabelSpec, Make, OutputSpec, element};

/// Images and labels of a batch that are mixed together.
#[derive(Clone)]
pub struct Mix {
    /// The number of the images among the outputs.
    pub image: usize,
    /// That of the labels, where they are delivered.
    pub label: Option<usize>,
    /// What is drawn.
    pub mixer: Mixer,
    /// The operator's number, for the key of its draws.
    pub operator: u32,
}

/// What a plan mixes, checked against its outputs.
pub fn of(normal: &Normalized, outputs: &[OutputSpec]) -> Result<Vec<Mix>> {
    let mix = |mix: &forebay_plan::Mix| {
        let place = |key: &str| format!("steps[{}].mix_images.{key}", mix.step);
        let gone = || Error::internal("what is to be mixed went missing");
        let image = outputs.get(mix.image).ok_or_else(gone)?;
        let Make::Image(spec) = &image.make else { return Err(gone()) };
        if spec.pipeline.fixed_size().is_none() {
            let message = "the images may have different sizes, and mixed ones need the same";
            return Err(Error::new(ErrorKind::Schema, message)
                .at_place(place("column"))
                .in_column(&*image.name)
                .with_hint(
                    "add an operator to map_image that fixes the size, for example Resize((224, 224)) or \
                     RandomResizedCrop(224)",
                ));
        }
        if let Some(label) = mix.label {
            let output = outputs.get(label).ok_or_else(gone)?;
            check_label(output, mix.spec.num_classes())
                .map_err(|e| e.at_place(place("label")).in_column(&*output.name))?;
        }
        Ok(Mix {
            image: mix.image,
            label: mix.label,
            mixer: Mixer::new(&mix.spec),
            operator: mix.operator,
        })
    };
    normal.mixes.iter().map(mix).collect()
}

/// Shares of classes are floats, and as many as there are classes.
fn check_label(output: &OutputSpec, num_classes: Option<u32>) -> Result<()> {
    let dense = match &output.make {
        Make::Label(_) => return Ok(()),
        Make::Dense(dense) => dense,
        _ => return Err(Error::internal("labels that are no numbers")),
    };
    let classes = dense.row.first().copied().unwrap_or(0);
    if !dense.dtype.is_float() {
        let message = format!(
            "labels of several numbers are shares of classes, and these are {}",
            dense.dtype
        );
        return Err(Error::new(ErrorKind::Schema, message).with_hint(
            "make them floats, for example stack(..., dtype=\"float32\") or arrow_cast(x, 'FixedSizeList(10, Float32)')",
        ));
    }
    match num_classes {
        Some(n) if n as usize != classes => {
            Err(Error::invalid(format!("labels have {classes} shares, and num_classes is {n}"))
                .with_hint(format!("leave num_classes out, or give {classes}")))
        }
        _ => Ok(()),
    }
}

/// How labels are made that are mixed: class indices become shares; shares stay what they are.
pub fn label(
    name: &Arc<str>,
    from: usize,
    field: &Field,
    num_classes: Option<u32>,
    fill: Option<Fill>,
) -> Result<Make> {
    let dense = |dtype, row| DenseSpec {
        from: vec![from],
        names: vec![Arc::clone(name)],
        dtype,
        row,
        fill: vec![fill],
    };
    let refused = |message: String, hint: String| {
        Error::new(ErrorKind::Schema, message).in_column(&**name).with_hint(hint)
    };
    match (field.data_type(), element(field.data_type())) {
        (t, Some(dtype)) if t.is_integer() => match num_classes {
            Some(n) => Ok(Make::Label(LabelSpec { dense: dense(dtype, Vec::new()), classes: n as usize })),
            None => Err(refused(
                "num_classes is missing, and the labels are class indices".to_owned(),
                "give all operators of mix_images the number of classes, for example num_classes=1000".to_owned(),
            )),
        },
        (DataType::FixedSizeList(item, n), _) => {
            let dtype = element(item.data_type()).ok_or_else(|| {
                refused(
                    format!("labels of several numbers are shares of classes, and these are {}", item.data_type()),
                    "make them floats, for example with arrow_cast(x, 'FixedSizeList(10, Float32)')".to_owned(),
                )
            })?;
            Ok(Make::Dense(dense(dtype, vec![usize::try_from(*n).unwrap_or(0)])))
        }
        (other, _) => Err(refused(
            format!("labels are class indices or shares of classes, and this is a column of {other}"),
            format!("convert it first, for example with {}", cast_to(name, "BIGINT")),
        )),
    }
}

/// A label as a class, or the number that it is.
pub fn class(bytes: &[u8], dtype: DType, classes: usize) -> Result<usize, i128> {
    let number = integer(bytes, dtype).unwrap_or(-1);
    usize::try_from(number).ok().filter(|class| *class < classes).ok_or(number)
}

fn integer(bytes: &[u8], dtype: DType) -> Option<i128> {
    macro_rules! read {
        ($type:ty) => {
            bytes.first_chunk().map(|b| i128::from(<$type>::from_ne_bytes(*b)))
        };
    }
    match dtype {
        DType::Int8 => read!(i8),
        DType::Int16 => read!(i16),
        DType::Int32 => read!(i32),
        DType::Int64 => read!(i64),
        DType::UInt8 => read!(u8),
        DType::UInt16 => read!(u16),
        DType::UInt32 => read!(u32),
        DType::UInt64 => read!(u64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_all_types_are_classes_or_named() {
        assert_eq!(class(&3i64.to_ne_bytes(), DType::Int64, 4), Ok(3));
        assert_eq!(class(&4i64.to_ne_bytes(), DType::Int64, 4), Err(4));
        assert_eq!(class(&(-1i8).to_ne_bytes(), DType::Int8, 4), Err(-1));
        assert_eq!(class(&200u8.to_ne_bytes(), DType::UInt8, 256), Ok(200));
        assert_eq!(class(&u64::MAX.to_ne_bytes(), DType::UInt64, 9), Err(u64::MAX.into()));
        assert_eq!(class(&(-5i16).to_ne_bytes(), DType::Int16, 9), Err(-5));
        assert_eq!(class(&65535u16.to_ne_bytes(), DType::UInt16, 1 << 16), Ok(65535));
        assert_eq!(class(&7u32.to_ne_bytes(), DType::UInt32, 8), Ok(7));
        assert_eq!(class(&7i32.to_ne_bytes(), DType::Int32, 7), Err(7));
    }
}
