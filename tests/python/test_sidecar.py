"""Loaders that a sidecar serves: the same batches, whatever dies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from sidecars import Process
from support import digest, ids, numbered, write

import forebay as fb


@pytest.fixture
def rows(tmp_path: Path) -> fb.Dataset:
    return fb.read_parquet(numbered(tmp_path / "data" / "a.parquet", 10_000))


def test_an_epoch_is_the_same(sidecar: Process, rows: fb.Dataset) -> None:
    options = {"seed": 7, "format": "numpy"}
    here, there = rows.loader(64, **options), sidecar.connect().loader(rows, 64, **options)
    assert isinstance(there, fb.SidecarLoader)
    assert (len(there), there.rows, there.epoch) == (len(here), here.rows, here.epoch)
    for _ in range(2):
        assert there.state_dict() == here.state_dict()
        assert digest(iter(there)) == digest(iter(here))
    assert there.epoch == 2
    assert there.stats()["rows"] == here.stats()["rows"]
    assert there.stats()["pauses"] == 0


def test_every_kind_of_column_arrives(sidecar: Process, tmp_path: Path) -> None:
    texts = [f"text {i}" if i % 7 else None for i in range(300)]
    lists = [list(range(i % 5)) for i in range(300)]
    table = pa.table({"id": range(300), "text": texts, "list": lists})
    ds = fb.read_parquet(write(tmp_path / "data" / "kinds.parquet", table))
    options = {"shuffle": "none", "lists": "ragged", "format": "torch"}
    here, there = ds.loader(50, **options), sidecar.connect().loader(ds, 50, **options)
    for a, b in zip(here, there, strict=True):
        assert a["text"] == b["text"]
        assert torch.equal(a["id"], b["id"])
        assert torch.equal(a["list"].values, b["list"].values)
        assert torch.equal(a["list"].offsets, b["list"].offsets)
    arrow = sidecar.connect().loader(ds, 50, shuffle="none", format="arrow")
    assert pa.concat_tables(pa.table(b.to_pyarrow()) for b in arrow).equals(table)


def test_positions_move_as_in_process(sidecar: Process, rows: fb.Dataset) -> None:
    options = {"seed": 7, "format": "numpy"}
    here, there = rows.loader(64, **options), sidecar.connect().loader(rows, 64, **options)
    for loader in (here, there):
        batches = iter(loader)
        for _ in range(5):
            next(batches)
    assert there.state_dict() == here.state_dict()
    # An early break starts the epoch again; a loaded position goes on from it.
    assert ids(there) == ids(rows.loader(64, **options))
    state = here.state_dict()
    fresh, other = sidecar.connect().loader(rows, 64, **options), rows.loader(64, **options)
    fresh.load_state_dict(state)
    other.load_state_dict(state)
    assert ids(fresh) == ids(other)
    fresh.set_epoch(9)
    other.set_epoch(9)
    assert (fresh.epoch, ids(fresh)) == (9, ids(other))
    with pytest.raises(fb.InvalidInputError, match="seed"):
        fresh.load_state_dict({**state, "seed": 8})


def test_batches_outlive_the_loader(sidecar: Process, rows: fb.Dataset) -> None:
    batches = iter(sidecar.connect().loader(rows, 64, shuffle="none", format="numpy"))
    kept = next(batches)["id"]
    del batches
    assert kept.tolist() == list(range(64))
    del kept


def test_many_batches_may_be_held(sidecar: Process, rows: fb.Dataset) -> None:
    loader = sidecar.connect().loader(rows, 64, shuffle="none", format="numpy")
    kept = [batch["id"] for batch in loader]
    assert np.concatenate(kept).tolist() == list(range(10_000))


def test_two_loops_at_the_same_time(sidecar: Process, rows: fb.Dataset) -> None:
    loader = sidecar.connect().loader(rows, 64, shuffle="none", format="numpy")
    for a, b in zip(loader, loader, strict=True):
        assert a["id"].tolist() == b["id"].tolist()


def test_ranks_share_an_epoch(sidecar: Process, rows: fb.Dataset) -> None:
    whole = ids(rows.loader(64, seed=3, format="numpy"))
    connection = sidecar.connect()
    ranks = [
        connection.loader(rows, 32, seed=3, rank=rank, world_size=2, format="numpy")
        for rank in range(2)
    ]
    steps = zip(*ranks, strict=True)
    assert [int(i) for step in steps for batch in step for i in batch["id"]] == whole
