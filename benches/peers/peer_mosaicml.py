"""MosaicML Streaming: StreamingDataset and StreamingDataLoader, two workers, over MDS made of the same rows.

A local folder is read in place. From a bucket it downloads whole shards into a folder of its own; the folder
is new for each measurement, so that the shards of the first batch have to come.
"""

from __future__ import annotations

import os
import tempfile
from importlib import metadata

import numpy as np
import streaming
import streaming.base.util
import torch
import torchvision.transforms.v2  # noqa: F401 - an import, so outside the clock

import recipes
from case import IMAGE_BATCH, TABULAR_BATCH
from data import Source

VERSION = metadata.version("mosaicml-streaming")


class Photographs(streaming.StreamingDataset):
    """Decode where the sample is fetched, as the library's users do."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.transform = recipes.tensor()

    def __getitem__(self, at: int):
        sample = super().__getitem__(at)
        return self.transform(memoryview(sample["image"])), sample["label"]


class Flights(streaming.StreamingDataset):
    """One array a row; the batch is stacked by `_stack`."""

    def __getitem__(self, at: int) -> np.ndarray:
        return super().__getitem__(at)["x"]


def _stack(rows: list[np.ndarray]) -> tuple[torch.Tensor]:
    return (torch.from_numpy(np.stack(rows)),)


def prepare(threads: int) -> None:
    """Remove what an ended process may have left in shared memory, as the library asks."""
    streaming.base.util.clean_stale_shared_memory()


def resume(source: Source, threads: int, seed: int, what: str) -> streaming.StreamingDataLoader:
    """The library's defaults for shards, shuffle (py1e) and download."""
    if source.path.startswith("s3://"):
        where = {"remote": source.path, "local": tempfile.mkdtemp(prefix="shards-", dir=os.getcwd())}
    else:
        where = {"local": source.path}
    kind, size = (Photographs, IMAGE_BATCH) if what == "photographs" else (Flights, TABULAR_BATCH)
    dataset = kind(**where, shuffle=True, shuffle_seed=seed, batch_size=size)
    return streaming.StreamingDataLoader(
        dataset, batch_size=size, num_workers=threads, collate_fn=_stack if what == "flights" else None
    )
