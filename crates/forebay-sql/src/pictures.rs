//! `image_width`, `image_height`, `image_mode` and `image_format`: what the header of a picture says.
//!
//! A filter by size reads the pictures' bytes and decodes none. A value that is null, or whose header
//! cannot be read, gives null, so that a filter leaves it out and `IS NULL` finds it.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, StringArray};
use arrow::datatypes::DataType;
use forebay_ops::{ImageInfo, image_info};

use crate::df::{
    ColumnarValue, DataFusionError, DfResult, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, TypeSignature, Volatility,
};

/// The functions, one for each fact.
pub(crate) fn all() -> impl Iterator<Item = Arc<ScalarUDF>> {
    let facts = [Fact::Width, Fact::Height, Fact::Mode, Fact::Format];
    facts.into_iter().map(|fact| Arc::new(ScalarUDF::new_from_impl(ImageFact::new(fact))))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fact {
    Width,
    Height,
    Mode,
    Format,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ImageFact {
    fact: Fact,
    signature: Signature,
}

impl ImageFact {
    fn new(fact: Fact) -> Self {
        let bytes = [DataType::Binary, DataType::LargeBinary, DataType::BinaryView];
        let bytes = bytes.into_iter().map(|t| TypeSignature::Exact(vec![t])).collect();
        Self { fact, signature: Signature::one_of(bytes, Volatility::Immutable) }
    }

    fn values<'a>(&self, pictures: impl Iterator<Item = Option<&'a [u8]>>) -> ArrayRef {
        let infos = pictures.map(|bytes| image_info(bytes?).ok());
        match self.fact {
            Fact::Width => numbers(infos, |info| info.width),
            Fact::Height => numbers(infos, |info| info.height),
            Fact::Mode => words(infos, |info| info.mode.name()),
            Fact::Format => words(infos, |info| info.format),
        }
    }
}

fn numbers(
    infos: impl Iterator<Item = Option<ImageInfo>>,
    number: fn(&ImageInfo) -> u32,
) -> ArrayRef {
    let numbers = infos.map(|info| info.map(|info| i64::from(number(&info))));
    Arc::new(numbers.collect::<Int64Array>())
}

fn words(
    infos: impl Iterator<Item = Option<ImageInfo>>,
    word: fn(&ImageInfo) -> &'static str,
) -> ArrayRef {
    Arc::new(infos.map(|info| info.as_ref().map(word)).collect::<StringArray>())
}

impl ScalarUDFImpl for ImageFact {
    fn name(&self) -> &str {
        match self.fact {
            Fact::Width => "image_width",
            Fact::Height => "image_height",
            Fact::Mode => "image_mode",
            Fact::Format => "image_format",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(match self.fact {
            Fact::Width | Fact::Height => DataType::Int64,
            Fact::Mode | Fact::Format => DataType::Utf8,
        })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let [pictures] = arrays.as_slice() else {
            return Err(DataFusionError::Internal(format!("{} takes one argument", self.name())));
        };
        let found = match pictures.data_type() {
            DataType::Binary => self.values(pictures.as_binary::<i32>().iter()),
            DataType::LargeBinary => self.values(pictures.as_binary::<i64>().iter()),
            DataType::BinaryView => self.values(pictures.as_binary_view().iter()),
            other => {
                let what = format!("{} takes the bytes of pictures, not {other}", self.name());
                return Err(DataFusionError::Plan(what));
            }
        };
        Ok(ColumnarValue::Array(found))
    }
}
