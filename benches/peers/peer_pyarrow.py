"""pyarrow's dataset scan, two threads: alone (`scan`), and with the work to a dense batch added."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.dataset as pads
import torch

from batches import dense, fixed
from case import TABULAR_BATCH
from data import COLUMNS, Source


def prepare(threads: int) -> None:
    """As many decoding threads as every peer has; reads of the page cache keep their own pool."""
    pa.set_cpu_count(threads)


def tabular(source: Source, threads: int, seed: int, order: str, variant: str = ""):
    """`scan` hands out record batches as they come: less work than any loader does."""
    dataset = pads.dataset(source.files(), format="parquet")

    class Epochs:
        def __iter__(self):
            stream = dataset.to_batches(columns=COLUMNS, use_threads=True)
            if variant == "scan":
                yield from (b for b in stream if b.num_rows)
                return
            for matrix in fixed(map(dense, stream), TABULAR_BATCH):
                yield torch.from_numpy(matrix)

    return Epochs()
