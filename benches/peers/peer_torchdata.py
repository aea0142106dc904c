"""torchdata's StatefulDataLoader: two workers, in the two shapes in which its users write data sets.

`stream`: an IterableDataset over row groups that are permuted, rows permuted within each, with the position
(row group, row) as its state: a resumed worker reads one row group. `map`: the whole set in memory and a full
permutation, whose position the loader's own sampler keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torchvision.transforms.v2  # noqa: F401 - an import, so outside the clock
from torch.utils.data import IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

import recipes
from batches import dense
from case import IMAGE_BATCH, TABULAR_BATCH
from data import COLUMNS, Source
from peer_torch import FlightMatrix, Photographs
from storage import Storage

IMAGE_COLUMNS = ["image", "label"]


class _Stream(IterableDataset):
    """Row groups shared among the workers; the state is of the worker that it is in."""

    def __init__(self, source: Source, seed: int) -> None:
        self.source, self.seed = source, seed
        self.group = self.row = 0
        self.loaded = False

    def state_dict(self) -> dict[str, int]:
        return {"group": self.group, "row": self.row}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.group, self.row = state["group"], state["row"]
        self.loaded = True

    def tables(self, columns: list[str]) -> Iterator[tuple[pa.Table, np.ndarray]]:
        """Deliver each row group from the position on, and the order of its rows."""
        # At the end the position stays there: a worker whose share is delivered is asked once more after a resume.
        if not self.loaded:
            self.group = self.row = 0
        self.loaded = False
        info = get_worker_info()
        storage = Storage(self.source)
        opened = [storage.open(f) for f in storage.files]
        pieces = [(number, group) for number, file in enumerate(opened) for group in range(file.num_row_groups)]
        order = np.random.default_rng(self.seed).permutation(len(pieces))[info.id :: info.num_workers]
        while self.group < len(order):
            piece = order[self.group]
            number, group = pieces[piece]
            table = opened[number].read_row_group(group, columns=columns, use_threads=False)
            yield table, np.random.default_rng([self.seed, piece]).permutation(table.num_rows)
            self.group, self.row = self.group + 1, 0


class PhotographStream(_Stream):
    """Samples, decoded here."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        transform = recipes.tensor()
        for table, order in self.tables(IMAGE_COLUMNS):
            images, labels = table["image"].chunk(0), table["label"].to_numpy()
            for row in range(self.row, len(order)):
                # The position is after the sample that is being handed out.
                self.row = row + 1
                yield transform(images[order[row]].as_buffer()), int(labels[order[row]])


class FlightStream(_Stream):
    """Whole batches, which may begin in one row group and end in the next."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor]]:
        parts: list[np.ndarray] = []
        for table, order in self.tables(COLUMNS):
            matrix = dense(table)
            while self.row < len(order):
                missing = TABULAR_BATCH - sum(len(p) for p in parts)
                parts.append(matrix[order[self.row : self.row + missing]])
                self.row += len(parts[-1])
                if len(parts[-1]) == missing:
                    batch, parts = np.concatenate(parts), []
                    yield (torch.from_numpy(batch),)
        if parts:
            yield (torch.from_numpy(np.concatenate(parts)),)


def resume(source: Source, threads: int, seed: int, what: str, variant: str) -> StatefulDataLoader:
    """One of four loaders; their own `state_dict` and `load_state_dict` are called."""
    if variant == "stream":
        if what == "photographs":
            return StatefulDataLoader(PhotographStream(source, seed), IMAGE_BATCH, num_workers=threads)
        return StatefulDataLoader(FlightStream(source, seed), batch_size=None, num_workers=threads)
    storage = Storage(source)
    shuffled: dict[str, Any] = {"shuffle": True, "generator": torch.Generator().manual_seed(seed)}
    if what == "photographs":
        table = pa.concat_tables(storage.table(f, IMAGE_COLUMNS) for f in storage.files)
        dataset: Any = Photographs(table, recipes.tensor())
        return StatefulDataLoader(dataset, IMAGE_BATCH, num_workers=threads, **shuffled)
    dataset = FlightMatrix(storage.table(f, COLUMNS) for f in storage.files)
    return StatefulDataLoader(dataset, TABULAR_BATCH, num_workers=threads, collate_fn=_alone, **shuffled)


def _alone(batch: torch.Tensor) -> tuple[torch.Tensor]:
    return (batch,)
