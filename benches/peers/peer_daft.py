"""Daft's local engine: what it can do of the two jobs.

`native` uses Daft's own decode, crop and resize; it has no flip and no normalise, and no random number per
row over floats, so the crop boxes are drawn by a function on the image's width and height, and flip and
normalise run in torch on whole batches. `udf` gives Daft the same torchvision function as the other peers.
Daft has no shuffle that streams: images come in file order.
"""

from __future__ import annotations

import daft
import pyarrow as pa
import torch
import torchvision.transforms.v2  # noqa: F401 - an import, so outside the start-up clock
from daft import DataType, Series, col
from daft.functions import crop, decode_image, image_height, image_width, resize

import recipes
from batches import dense, fixed
from case import IMAGE_BATCH, IMAGE_SIZE, MEAN, STD, TABULAR_BATCH
from data import COLUMNS, Source
from recipes import crop_box


def prepare(threads: int) -> None:
    """Daft sizes its pool by the process's CPUs, which are pinned; only the runner is chosen here."""
    daft.set_runner_native(threads)


@daft.func.batch(return_dtype=DataType.list(DataType.uint32()))
def _boxes(widths: Series, heights: Series):
    return [list(crop_box(w, h)) for w, h in zip(widths.to_pylist(), heights.to_pylist(), strict=True)]


@daft.func.batch(return_dtype=DataType.tensor(DataType.float32(), (3, IMAGE_SIZE, IMAGE_SIZE)))
def _torchvision(images: Series):
    apply = recipes.tensor()
    return [apply(data).numpy() for data in images.to_pylist()]


class _Images:
    def __init__(self, frame, variant: str) -> None:
        self.frame, self.variant = frame, variant
        self.mean = torch.tensor(MEAN).view(1, 3, 1, 1) * 255
        self.scale = 1 / (torch.tensor(STD).view(1, 3, 1, 1) * 255)

    def __iter__(self):
        for batch in self.frame.to_arrow_iter():
            column = batch.column("image")
            storage = column.storage if isinstance(column, pa.ExtensionArray) else column
            flat = storage.flatten().to_numpy(zero_copy_only=False)
            if self.variant == "udf":
                whole = torch.from_numpy(flat.reshape(-1, 3, IMAGE_SIZE, IMAGE_SIZE))
                for start in range(0, len(whole), IMAGE_BATCH):
                    yield whole[start : start + IMAGE_BATCH].clone()
                continue
            whole = torch.from_numpy(flat.reshape(-1, IMAGE_SIZE, IMAGE_SIZE, 3))
            for start in range(0, len(whole), IMAGE_BATCH):
                part = whole[start : start + IMAGE_BATCH].permute(0, 3, 1, 2).float()
                mirrored = torch.rand(len(part)) < 0.5
                part[mirrored] = part[mirrored].flip(3)
                yield part.sub_(self.mean).mul_(self.scale).contiguous()


def images(source: Source, threads: int, seed: int, variant: str = "native"):
    """Build the frame; running it is inside the clock."""
    frame = daft.read_parquet(source.path).select("image", "label")
    if variant == "udf":
        frame = frame.into_batches(IMAGE_BATCH).select(_torchvision(col("image")).alias("image"), col("label"))
    else:
        frame = frame.into_batches(IMAGE_BATCH).with_column("image", decode_image(col("image"), mode="RGB"))
        boxes = _boxes(image_width(col("image")), image_height(col("image")))
        frame = frame.with_column("image", crop(col("image"), boxes))
        frame = frame.with_column("image", resize(col("image"), IMAGE_SIZE, IMAGE_SIZE))
        frame = frame.with_column("image", col("image").cast(DataType.image("RGB", IMAGE_SIZE, IMAGE_SIZE)))
    return _Images(frame, variant)


startup = images


def tabular(source: Source, threads: int, seed: int, order: str, variant: str = ""):
    """The scan as Arrow batches, made dense here."""
    frame = daft.read_parquet(source.files()).select(*COLUMNS)

    class Epochs:
        def __iter__(self):
            for matrix in fixed(map(dense, frame.to_arrow_iter()), TABULAR_BATCH):
                yield torch.from_numpy(matrix)

    return Epochs()
