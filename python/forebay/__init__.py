"""Forebay: a streaming data engine for machine learning.

Datasets of Parquet files, filtered and transformed by a Rust engine, delivered as batches of
tensors that share the engine's memory.

Examples
--------
>>> import forebay as fb
>>> ds = fb.read_parquet("examples/data/flights")  # doctest: +SKIP
>>> ds.filter("dep_delay > 60").count()  # doctest: +SKIP
"""

from forebay._dataset import Dataset, Snapshot, read_parquet, read_snapshot
from forebay._encoding import encode_image
from forebay._errors import (
    AlreadyExistsError,
    CancelledError,
    ChangedError,
    CorruptDataError,
    DataError,
    ForebayError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    ResourceError,
    SchemaError,
    StorageError,
    UnsupportedError,
)
from forebay._forebay import ArrowBatch, Tensor, __version__
from forebay._image_colors import (
    ColorJitter,
    GaussianBlur,
    Grayscale,
    RandAugment,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
    TrivialAugmentWide,
)
from forebay._image_info import ImageInfo, image_info
from forebay._images import (
    CenterCrop,
    ImageOp,
    Normalize,
    Pad,
    RandomAffine,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
    ToDtype,
)
from forebay._loader import Loader, merge_states
from forebay._memory import MemoryUse, memory
from forebay._mix_images import CutMix, MixOp, MixUp
from forebay._mixing import Mixing, mixing, mixing_of
from forebay._ragged import Ragged
from forebay._sidecar import Sidecar, SidecarLoader, connect

__all__ = [
    "AlreadyExistsError",
    "ArrowBatch",
    "CancelledError",
    "CenterCrop",
    "ChangedError",
    "ColorJitter",
    "CorruptDataError",
    "CutMix",
    "DataError",
    "Dataset",
    "ForebayError",
    "GaussianBlur",
    "Grayscale",
    "ImageInfo",
    "ImageOp",
    "InternalError",
    "InvalidInputError",
    "Loader",
    "MemoryUse",
    "MixOp",
    "MixUp",
    "Mixing",
    "Normalize",
    "NotFoundError",
    "Pad",
    "PermissionDeniedError",
    "Ragged",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomAutocontrast",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Resize",
    "ResourceError",
    "SchemaError",
    "Sidecar",
    "SidecarLoader",
    "Snapshot",
    "StorageError",
    "Tensor",
    "ToDtype",
    "TrivialAugmentWide",
    "UnsupportedError",
    "__version__",
    "connect",
    "encode_image",
    "image_info",
    "memory",
    "merge_states",
    "mixing",
    "mixing_of",
    "read_parquet",
    "read_snapshot",
]
