"""torch DataLoader with torchvision: two workers, as its users write it, in its fastest spelling.

Images: map-style over a table that is already in memory, shared with the forked workers by copy-on-write,
so that a random read costs nothing; `tensor` decodes with torchvision's libjpeg-turbo and transforms with
transforms.v2 on uint8 tensors, `pil` is the textbook recipe with Pillow.
Tabular: an IterableDataset over pyarrow whose workers share the files; shuffled either as a map-style set
held whole in memory and fetched a batch at a time, or with a buffer of 65,536 rows in each worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torchvision.transforms.v2  # noqa: F401 - an import, so outside the start-up clock
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, get_worker_info

import recipes
from batches import dense, fixed, permuted_images
from case import IMAGE_BATCH, SHUFFLE_BUFFER, TABULAR_BATCH
from data import COLUMNS, Source


class Photographs(Dataset):
    """Random reads of an Arrow table in memory."""

    def __init__(self, table: pa.Table, transform) -> None:
        # One chunk, so that an index is one offset: 440 MB fit the 2 GiB of a binary array.
        self.images = (
            pa.concat_arrays(table["image"].chunks) if table["image"].num_chunks > 1 else table["image"].chunk(0)
        )
        self.labels = table["label"].to_numpy()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int):
        return self.transform(self.images[row].as_buffer()), int(self.labels[row])


class PhotographStream(IterableDataset):
    """Row groups shared among the workers, permuted, rows permuted within."""

    def __init__(self, path: str, transform, seed: int) -> None:
        self.path, self.transform, self.seed = path, transform, seed

    def __iter__(self):
        info = get_worker_info()
        for data, label in permuted_images(self.path, self.seed, info.id, info.num_workers):
            yield self.transform(data), label


class _First:
    """Deliver the image tensor of each (image, label) batch; the labels have been collated all the same."""

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[torch.Tensor]:
        for images, _labels in self.loader:
            yield images


def images(source: Source, threads: int, seed: int, variant: str = "tensor"):
    """Map-style, full permutation by RandomSampler."""
    generator = torch.Generator().manual_seed(seed)
    table = pq.read_table(source.path, columns=["image", "label"], memory_map=True)
    dataset = Photographs(table, recipes.pil() if variant == "pil" else recipes.tensor(variant == "eval"))
    return _First(DataLoader(dataset, IMAGE_BATCH, shuffle=True, num_workers=threads, generator=generator))


def startup(source: Source, threads: int, seed: int, variant: str = "map"):
    """`map` reads the whole file first; `stream` reads a row group in each worker."""
    if variant == "map":
        return images(source, threads, seed)
    dataset = PhotographStream(source.path, recipes.tensor(), seed)
    return _First(DataLoader(dataset, IMAGE_BATCH, num_workers=threads))


class FlightStream(IterableDataset):
    """Each worker scans its share of the files and yields dense batches."""

    def __init__(self, files: list[str], seed: int | None) -> None:
        self.files, self.seed = files, seed

    def __iter__(self):
        info = get_worker_info()
        # A file to each worker in turn; one file alone is shared by row groups instead.
        pieces = [(f, g) for f in self.files for g in range(pq.ParquetFile(f).num_row_groups)]
        if len(self.files) >= info.num_workers:
            mine = [p for p in pieces if self.files.index(p[0]) % info.num_workers == info.id]
        else:
            mine = pieces[info.id :: info.num_workers]
        stream = self._matrices(mine)
        if self.seed is not None:
            stream = self._mixed(stream, np.random.default_rng(self.seed + info.id))
        for matrix in fixed(stream, TABULAR_BATCH):
            yield torch.from_numpy(matrix)

    @staticmethod
    def _matrices(pieces):
        pa.set_cpu_count(1)
        opened: tuple[str, pq.ParquetFile] | None = None
        for name, group in pieces:
            if opened is None or opened[0] != name:
                opened = (name, pq.ParquetFile(name, memory_map=True))
            yield dense(opened[1].read_row_group(group, columns=COLUMNS, use_threads=False))

    @staticmethod
    def _mixed(stream, generator: np.random.Generator):
        """A buffer of 65,536 rows, permuted when full, half of it handed out: mixing across row groups."""
        half = SHUFFLE_BUFFER // 2
        held: np.ndarray | None = None
        for chunk in fixed(stream, half):
            if held is None:
                held = chunk
                continue
            both = np.concatenate([held, chunk])[generator.permutation(len(held) + len(chunk))]
            held = both[: len(held)]
            yield both[len(held) :]
        if held is not None:
            yield held[generator.permutation(len(held))]


class FlightMatrix(Dataset):
    """The whole set as one float32 matrix; `__getitems__` fetches a batch in one call."""

    def __init__(self, tables: Iterable[pa.Table]) -> None:
        self.rows = torch.from_numpy(np.concatenate([dense(t) for t in tables]))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, rows: list[int]) -> torch.Tensor:
        return self.rows[torch.as_tensor(rows)]


class _InMemory:
    """Load and permute inside the epoch: the peers it is compared with read the files in theirs."""

    def __init__(self, files: list[str], threads: int, seed: int) -> None:
        self.files, self.threads, self.seed = files, threads, seed

    def __iter__(self):
        dataset = FlightMatrix(pq.read_table(f, columns=COLUMNS) for f in self.files)
        sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(self.seed))
        # The batch sampler is given as the batch sampler, so that fetching goes through __getitems__.
        batches = BatchSampler(sampler, TABULAR_BATCH, drop_last=False)
        yield from DataLoader(dataset, batch_sampler=batches, num_workers=self.threads, collate_fn=_as_is)


def _as_is(batch):
    return batch


def tabular(source: Source, threads: int, seed: int, order: str, variant: str = ""):
    """In file order (each worker its own files), or shuffled by one of two means."""
    if order == "file":
        return DataLoader(FlightStream(source.files(), None), batch_size=None, num_workers=threads)
    if variant == "buffer":
        return DataLoader(FlightStream(source.files(), seed), batch_size=None, num_workers=threads)
    return _InMemory(source.files(), threads, seed)
