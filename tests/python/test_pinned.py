"""Pinned memory: with a library in place of the CUDA driver, and on a GPU where there is one.

The library has the calls that Forebay makes and writes them down. It shows which calls are made,
and that loaders are the same over such memory; not that a GPU copies out of it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import numpy as np
import pytest
from support import ROOT, child, finish, ids, numbered

import forebay as fb

PRELUDE = textwrap.dedent(
    """
    import os, sys
    import forebay as fb

    def loader(**options):
        ds = fb.read_parquet(sys.argv[1])
        return ds.loader(64, **{"format": "numpy", "shuffle": "none", **options})

    def ids(loader):
        return [int(i) for batch in loader for i in batch["id"]]
    """
)


@pytest.fixture
def rows(tmp_path: Path) -> str:
    return numbered(tmp_path / "rows.parquet", 5000)


class Driver:
    """The library in place of the driver, and what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "log"
        source = ROOT / "crates" / "forebay-cuda" / "tests" / "driver.c"
        library = folder / "libcuda.so.1"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
        (folder / "libcuda.so").symlink_to(library)

    def run(self, code: str, *arguments: str, **variables: str) -> tuple[int, str, str]:
        given = {"LD_LIBRARY_PATH": str(self._folder), "FAKE_CUDA_LOG": str(self._log)}
        code = PRELUDE + textwrap.dedent(code)
        return finish(child(code, *arguments, **given, **variables))

    def calls(self, name: str) -> list[str]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [line for line in lines if line.startswith(name)]


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path / "driver"
    folder.mkdir()
    return Driver(folder)


def test_batches_are_pinned_where_there_is_a_driver(driver: Driver, rows: str) -> None:
    code = """
        for options in {}, {"pin_memory": "auto"}, {"pin_memory": True}:
            first = loader(**options)
            for _ in range(2):
                assert ids(first) == list(range(5000))
            assert first.stats()["pinned"] is True
    """
    assert driver.run(code, rows) == (0, "", "")
    allocated = driver.calls("alloc")
    assert allocated
    # Portable, and not write-combined.
    assert all(re.fullmatch(r"alloc 0x[0-9a-f]+ \d+ flags 1", line) for line in allocated)
    assert driver.calls("synchronize begins")
    assert len(driver.calls("init")) == 1


def test_nothing_of_cuda_is_touched_before_a_loader_asks(driver: Driver, rows: str) -> None:
    code = """
        unpinned = loader(pin_memory=False)
        assert ids(unpinned) == list(range(5000))
        assert unpinned.stats()["pinned"] is False
    """
    assert driver.run(code, rows) == (0, "", "")
    assert driver.calls("init") == []


def test_memory_is_used_again_only_after_waiting(driver: Driver, rows: str) -> None:
    code = """
        def waits():
            with open(os.environ["FAKE_CUDA_LOG"]) as log:
                return log.read().count("synchronize ends")

        # Not enumerate: it keeps what it gave last.
        seen, n = {}, 0
        for batch in loader(prefetch=2):
            assert (batch["id"] == range(n * 64, n * 64 + len(batch["id"]))).all()
            at, now = batch["id"].ctypes.data, waits()
            # When it was seen last, it was not yet released.
            assert at not in seen or now > seen[at], (n, seen, now)
            seen[at] = now
            n += 1
            del batch
            while waits() == now:
                pass
        assert len(seen) < n, "no block was used again"
    """
    assert driver.run(code, rows) == (0, "", "")


@pytest.mark.parametrize(
    "code",
    {
        "a batch in a global": """
            batch = next(iter(loader()))
        """,
        "in the middle of an epoch": """
            it = iter(loader(prefetch=16))
            next(it)
            sys.exit(0)
        """,
        "released by another thread at exit": """
            import atexit, threading
            batch = [next(iter(loader()))]
            def release():
                thread = threading.Thread(target=batch.clear)
                thread.start()
                thread.join()
            atexit.register(release)
        """,
        "released when modules are torn down": """
            import builtins
            builtins.batch = next(iter(loader()))
        """,
    }.values(),
)
def test_the_interpreter_exits_with_pinned_batches(driver: Driver, rows: str, code: str) -> None:
    assert driver.run(code, rows) == (0, "", "")
    assert driver.calls("alloc")


def test_a_forked_child_has_ordinary_memory_and_says_so(driver: Driver, rows: str) -> None:
    code = """
        first = loader(pin_memory=True)
        batch = next(iter(first))
        if os.fork() == 0:
            for _ in range(2):
                assert ids(first) == list(range(5000))
            assert first.stats()["pinned"] is False
            del batch
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        assert ids(first) == list(range(5000))
        assert first.stats()["pinned"] is True
    """
    status, out, err = driver.run(code, rows)
    assert (status, out) == (0, ""), err
    assert err.count("pin_memory: batches are in ordinary memory") == 1
    assert err.count("forked") == 1
    assert len(driver.calls("init")) == 1


def test_workers_of_a_dataloader_leave_the_device_alone(driver: Driver, rows: str) -> None:
    code = """
        from torch.utils.data import DataLoader

        if __name__ == "__main__":
            data = loader(format="torch").as_torch()
            for start in "fork", "spawn":
                workers = {"num_workers": 2, "multiprocessing_context": start}
                seen = ids(DataLoader(data, batch_size=None, **workers))
                assert seen == list(range(5000))
    """
    assert driver.run(code, rows) == (0, "", "")
    assert len(driver.calls("init")) == 1


def test_where_no_memory_can_be_locked_it_is_ordinary(driver: Driver, rows: str) -> None:
    code = """
        first = loader(pin_memory=True)
        assert ids(first) == list(range(5000))
        assert first.stats()["pinned"] is False
    """
    status, out, err = driver.run(code, rows, FAKE_CUDA_FAIL="cuMemHostAlloc")
    assert (status, out) == (0, "")
    assert err.count("cuMemHostAlloc gave CUDA_ERROR_OUT_OF_MEMORY") == 1


def test_words(rows: str) -> None:
    with pytest.raises(fb.InvalidInputError, match=r'expected true, false or "auto"'):
        fb.read_parquet(rows).loader(64, pin_memory="yes")


# --- with a GPU -----------------------------------------------------------------------------------


@pytest.fixture
def torch_cuda() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU here")


@pytest.mark.usefixtures("torch_cuda")
def test_torch_sees_pinned_tensors(rows: str) -> None:
    dataset = fb.read_parquet(rows)
    pinned = dataset.loader(64, shuffle="none")
    assert all(batch["id"].is_pinned() for batch in pinned)
    assert pinned.stats()["pinned"] is True
    plain = dataset.loader(64, shuffle="none", pin_memory=False)
    assert not any(batch["id"].is_pinned() for batch in plain)


@pytest.mark.usefixtures("torch_cuda")
def test_batches_may_go_while_they_are_copied(tmp_path: Path) -> None:
    import torch

    count = 2_000_000
    path = numbered(tmp_path / "many.parquet", count, row_group=100_000)
    loader = fb.read_parquet(path).loader(50_000, shuffle="none", prefetch=2)
    busy = torch.randn(4096, 4096, device="cuda")
    on_device = []
    for batch in loader:
        # The copy stands in line behind work, and the batch is let go of before it begins.
        for _ in range(20):
            busy = (busy @ busy).clamp(-1, 1)
        on_device.append(batch["id"].to("cuda", non_blocking=True))
        del batch
    assert np.array_equal(torch.cat(on_device).cpu().numpy(), np.arange(count))
    assert ids(loader) == list(range(count))
