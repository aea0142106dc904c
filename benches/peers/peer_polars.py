"""Polars' streaming engine, two threads: collect_batches alone (`scan`), and to dense batches."""

from __future__ import annotations

import polars as pl
import torch

from batches import fixed
from case import TABULAR_BATCH
from data import COLUMNS, Source


def tabular(source: Source, threads: int, seed: int, order: str, variant: str = ""):
    """POLARS_MAX_THREADS is set by the measuring process, before Polars is imported."""
    assert pl.thread_pool_size() == threads, pl.thread_pool_size()
    scan = pl.scan_parquet(source.files()).select(COLUMNS)
    if variant != "scan":
        scan = scan.select(pl.all().cast(pl.Float32).fill_null(float("nan")))

    class Epochs:
        def __iter__(self):
            stream = scan.collect_batches(maintain_order=True, lazy=True, engine="streaming")
            if variant == "scan":
                yield from stream
                return
            for matrix in fixed((frame.to_numpy(order="c") for frame in stream), TABULAR_BATCH):
                yield torch.from_numpy(matrix)

    return Epochs()
