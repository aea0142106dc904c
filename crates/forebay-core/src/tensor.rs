//! Element types and layouts of the tensors that Forebay delivers.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result, suggest};

/// The element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum DType {
    Bool,
    UInt8,
    Int8,
    UInt16,
    Int16,
    UInt32,
    Int32,
    UInt64,
    Int64,
    Float16,
    BFloat16,
    Float32,
    Float64,
}

impl DType {
    /// All element types.
    pub const ALL: [Self; 13] = [
        Self::Bool,
        Self::UInt8,
        Self::Int8,
        Self::UInt16,
        Self::Int16,
        Self::UInt32,
        Self::Int32,
        Self::UInt64,
        Self::Int64,
        Self::Float16,
        Self::BFloat16,
        Self::Float32,
        Self::Float64,
    ];

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::Bool | Self::UInt8 | Self::Int8 => 1,
            Self::UInt16 | Self::Int16 | Self::Float16 | Self::BFloat16 => 2,
            Self::UInt32 | Self::Int32 | Self::Float32 => 4,
            Self::UInt64 | Self::Int64 | Self::Float64 => 8,
        }
    }

    /// The name that NumPy and torch use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::UInt8 => "uint8",
            Self::Int8 => "int8",
            Self::UInt16 => "uint16",
            Self::Int16 => "int16",
            Self::UInt32 => "uint32",
            Self::Int32 => "int32",
            Self::UInt64 => "uint64",
            Self::Int64 => "int64",
            Self::Float16 => "float16",
            Self::BFloat16 => "bfloat16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
        }
    }

    /// Whether this is a floating point type.
    pub fn is_float(self) -> bool {
        matches!(self, Self::Float16 | Self::BFloat16 | Self::Float32 | Self::Float64)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|d| d.name() == s).ok_or_else(|| {
            Error::invalid(format!("unknown dtype {s:?}"))
                .with_hint(suggest::hint(s, Self::ALL.iter().map(|d| d.name())))
        })
    }
}

/// The order of the axes of one image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Height, width, channels: as decoders give it.
    Hwc,
    /// Channels, height, width: as torch models take it.
    #[default]
    Chw,
}

impl Layout {
    /// The name in job files and arguments: `HWC` or `CHW`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hwc => "HWC",
            Self::Chw => "CHW",
        }
    }

    /// The shape of an image of this layout.
    pub fn shape(self, height: usize, width: usize, channels: usize) -> [usize; 3] {
        match self {
            Self::Hwc => [height, width, channels],
            Self::Chw => [channels, height, width],
        }
    }
}

impl FromStr for Layout {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        match s {
            "HWC" => Ok(Self::Hwc),
            "CHW" => Ok(Self::Chw),
            _ => Err(Error::invalid(format!("unknown layout {s:?}"))
                .with_hint(suggest::hint(s, ["HWC", "CHW"]))),
        }
    }
}
