"""Ranks on one sidecar: what one of them reads serves the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sidecars import Process
from support import ids, numbered
from torch.utils.data import DataLoader

import forebay as fb

ROWS = 40_000
OPTIONS: dict[str, Any] = {"seed": 7, "lanes": 1, "window": 2, "format": "numpy"}


@pytest.fixture
def rows(tmp_path: Path) -> fb.Dataset:
    return fb.read_parquet(numbered(tmp_path / "data" / "a.parquet", ROWS, row_group=1000))


def alone(dataset: fb.Dataset, batch: int, **options: Any) -> tuple[list[int], int]:
    """What one loader of this process delivers and reads in an epoch."""
    loader = dataset.loader(batch, **OPTIONS, **options)
    return ids(loader), loader.stats()["bytes_read"]


def ranks(
    sidecar: Process, dataset: fb.Dataset, batch: int, world: int, **options: Any
) -> list[fb.Loader]:
    connection = sidecar.connect()
    return [
        connection.loader(dataset, batch // world, rank=r, world_size=world, **OPTIONS, **options)
        for r in range(world)
    ]


def read(loaders: list[fb.Loader]) -> int:
    return sum(loader.stats()["bytes_read"] for loader in loaders)


@pytest.mark.parametrize("shuffle", ["window", "none"])
@pytest.mark.parametrize("world", [2, 4])
def test_ranks_in_step_read_once(
    sidecar: Process, rows: fb.Dataset, world: int, shuffle: str
) -> None:
    expected, once = alone(rows, 64, shuffle=shuffle)
    loaders = ranks(sidecar, rows, 64, world, shuffle=shuffle)
    for _ in range(2):
        steps = zip(*loaders, strict=True)
        seen = [int(i) for step in steps for batch in step for i in batch["id"]]
        assert len(seen) == len(expected)
    assert read(loaders) <= 2 * once * 1.1
    first = ranks(sidecar, rows, 64, world, shuffle=shuffle)
    steps = zip(*first, strict=True)
    assert [int(i) for step in steps for batch in step for i in batch["id"]] == expected


def test_one_after_the_other_is_the_same_too(sidecar: Process, rows: fb.Dataset) -> None:
    expected, _ = alone(rows, 64)
    first, second = (ids(loader) for loader in ranks(sidecar, rows, 64, 2))
    halves = ((first[n : n + 32], second[n : n + 32]) for n in range(0, len(first), 32))
    assert [i for a, b in halves for i in (*a, *b)] == expected


def test_a_rank_that_leaves_takes_nothing_along(sidecar: Process, rows: fb.Dataset) -> None:
    expected, _ = alone(rows, 64)
    one, two = ranks(sidecar, rows, 64, 2)
    ahead, behind = iter(one), iter(two)
    seen = []
    for step in range(300):
        next(ahead)
        if step % 3 == 0:
            seen += next(behind)["id"].tolist()
    del ahead, one
    seen += [int(i) for batch in behind for i in batch["id"]]
    assert seen == [i for n in range(0, len(expected), 64) for i in expected[n + 32 : n + 64]]


def test_a_rank_that_stands_still_keeps_its_share_and_no_more(
    rows: fb.Dataset, tmp_path: Path
) -> None:
    sidecar = Process(tmp_path / "small", "--memory", "2MiB")
    one, two = ranks(sidecar, rows, 64, 2, prefetch=2)
    stopped = iter(two)
    next(stopped)
    expected, _ = alone(rows, 64)
    for _ in range(3):
        one.set_epoch(0)
        seen = ids(one)
        assert seen == [i for n in range(0, len(expected), 64) for i in expected[n : n + 32]]
    # It goes on where it was, and reads again what it has forfeited.
    rest = [int(i) for batch in stopped for i in batch["id"]]
    assert rest == [i for n in range(64, len(expected), 64) for i in expected[n + 32 : n + 64]]
    del one, two, stopped
    sidecar.is_quiet()
    assert sidecar.stop() == 0


def test_workers_of_a_data_loader_share(sidecar: Process, rows: fb.Dataset) -> None:
    expected, _ = alone(rows, 64)
    loader = sidecar.connect().loader(rows, 64, **{**OPTIONS, "format": "torch"})
    assert ids(DataLoader(loader.as_torch(), batch_size=None, num_workers=2)) == expected
