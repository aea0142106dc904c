"""Memory, threads and descriptors of loaders that live long, are many, or meet large rows."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import support
from sidecars import Process
from support import child, engine_threads, finish, numbered, until, write

import forebay as fb


def test_m07_many_loaders_leave_nothing(tmp_path: Path) -> None:
    rows = fb.read_parquet(numbered(tmp_path / "data" / "a.parquet", 5000))

    def cycle(loops: int) -> None:
        for _ in range(loops):
            next(iter(rows.loader(64, num_threads=2, format="numpy")))

    cycle(3)
    descriptors, threads = len(os.listdir("/proc/self/fd")), len(engine_threads())
    cycle(200)
    until(lambda: len(os.listdir("/proc/self/fd")) == descriptors, "descriptors are back")
    # Those for blocking work come and go with the load; there are never many.
    until(lambda: len(engine_threads()) <= threads + 8, f"{threads} threads: {engine_threads()}")


@pytest.fixture(scope="module")
def large_rows(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    """One row group of three rows of 8 MiB."""
    values = [np.random.default_rng(row).bytes(8 << 20) for row in range(3)]
    path = tmp_path_factory.mktemp("large") / "a.parquet"
    return fb.read_parquet(write(path, {"id": [0, 1, 2], "value": values}, row_group_size=3))


@pytest.mark.parametrize("limit", ["1MiB", "4MiB", "10MiB"])
def test_m06_a_row_larger_than_the_limit_is_delivered_alone(
    large_rows: fb.Dataset, limit: str
) -> None:
    batches = large_rows.loader(1, shuffle="none", memory_limit=limit, format="numpy")
    assert [(int(b["id"][0]), len(b["value"][0])) for b in batches] == [
        (row, 8 << 20) for row in range(3)
    ]


def test_m06_a_shuffle_that_does_not_fit_names_both_sizes(large_rows: fb.Dataset) -> None:
    with pytest.raises(fb.ResourceError, match=r"keeps 2\d\.\d MiB in memory") as caught:
        large_rows.loader(1, memory_limit="4MiB")
    assert "memory_limit is 4.0 MiB" in str(caught.value)


READER = """
import gc, os, sys
import forebay as fb
from torch.utils.data import DataLoader
ds = fb.read_parquet(sys.argv[1])
options = dict(batch_size=20_000, shuffle="none", num_threads=1)
if len(sys.argv) > 2:
    loader = fb.connect(sys.argv[2]).loader(ds, **options)
else:
    loader = ds.loader(**options)

def used():
    # Of this process and its workers: what nobody else has, and a share of what several have.
    pids = [os.getpid()]
    pids += map(int, open(f"/proc/self/task/{os.getpid()}/children").read().split())
    rollups = [open(f"/proc/{pid}/smaps_rollup").read() for pid in pids]
    return sum(int(text.split("Pss:")[1].split()[0]) for text in rollups) >> 10

rows, sizes = 0, []
for step, batch in enumerate(DataLoader(loader.as_torch(), batch_size=None, num_workers=2)):
    rows += len(batch["text"])
    del batch
    if step % 20 == 0:
        gc.collect()
        sizes.append(used())
print(rows, max(sizes[len(sizes) // 2 :]) - max(sizes[: len(sizes) // 2]))
"""


@pytest.mark.parametrize("served", [False, True])
def test_m04_many_short_strings_in_workers(tmp_path: Path, served: bool) -> None:
    """Millions of strings: the second half of an epoch takes no more memory than the first."""
    millions = 2 if served else 8
    path = tmp_path / "data" / "strings.parquet"
    path.parent.mkdir()
    with pq.ParquetWriter(path, pa.schema({"text": pa.string()})) as writer:
        for part in range(millions):
            numbers = np.arange(part * 1_000_000, (part + 1) * 1_000_000)
            texts = pa.array(numbers).cast(pa.string())
            writer.write_table(pa.table({"text": texts}), row_group_size=100_000)
    sidecar = Process(tmp_path / "s") if served else None
    arguments = [str(path), *([str(sidecar.socket)] if sidecar else [])]
    status, out, err = finish(child(READER, *arguments), timeout=4 * support.DEADLINE)
    assert (status, err) == (0, "")
    rows, grown = map(int, out.split())
    assert rows == millions * 1_000_000
    # In MiB; a copy of what was read would be some hundred.
    assert grown < 48
    if sidecar:
        sidecar.is_quiet()
        assert sidecar.stop() == 0
