"""Sidecars and the processes of a trainer: forks, workers, many loaders, a small /dev/shm."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import pytest
from sidecars import Process
from support import child, engine_threads, finish, ids, numbered, until
from torch.utils.data import DataLoader

import forebay as fb


@pytest.fixture
def rows(tmp_path: Path) -> fb.Dataset:
    return fb.read_parquet(numbered(tmp_path / "data" / "a.parquet", 20_000, row_group=500))


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_workers_of_a_data_loader(
    sidecar: Process, rows: fb.Dataset, context: str, workers: int
) -> None:
    loader = sidecar.connect().loader(rows, 256, seed=5)
    plain = ids(rows.loader(256, seed=5))
    options = {"multiprocessing_context": context} if workers else {}
    many = DataLoader(loader.as_torch(), batch_size=None, num_workers=workers, **options)
    assert ids(many) == plain
    loader.set_epoch(1)
    again = rows.loader(256, seed=5)
    again.set_epoch(1)
    assert ids(many) == ids(again)
    # They would end with this process only, which the other tests share.
    forkserver._forkserver._stop()
    resource_tracker._resource_tracker._stop()


def test_m02_a_forked_child_has_a_connection_of_its_own(sidecar: Process, rows: fb.Dataset) -> None:
    loader = sidecar.connect().loader(rows, 256, seed=5, format="numpy")
    batches = iter(loader)
    seen = next(batches)["id"].tolist()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with pytest.raises(RuntimeError, match="started in the parent process"):
                next(batches)
            del batches
            gc.collect()
            os.write(write, str(len(ids(loader))).encode())
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert int(os.read(read, 100)) == 20_000 // 256 * 256
    os.close(read)
    os.close(write)
    # The parent goes on as if nothing had happened.
    seen += [int(i) for batch in batches for i in batch["id"]]
    assert seen == ids(rows.loader(256, seed=5, format="numpy"))


def test_m07_many_loaders_leave_nothing(sidecar: Process, rows: fb.Dataset) -> None:
    def cycle(loops: int) -> None:
        connection = sidecar.connect()
        for _ in range(loops):
            loader = connection.loader(rows, 256, format="numpy", num_threads=1)
            next(iter(loader))
            del loader
        sidecar.is_quiet()

    def here() -> tuple[int, int, int]:
        maps = Path("/proc/self/maps").read_text()
        return len(os.listdir("/proc/self/fd")), maps.count("forebay-slab"), len(engine_threads())

    def there() -> tuple[int, int]:
        maps = Path(f"/proc/{sidecar.process.pid}/maps").read_text()
        return sidecar.descriptors(), maps.count("forebay-slab")

    cycle(5)
    # Connections of the status page close by themselves a little later.
    seen = []

    def is_at_rest() -> bool:
        seen.append((here(), there()))
        return len(seen) >= 50 and len(set(seen[-50:])) == 1

    until(is_at_rest, "it is at rest")
    before, threads = seen[-1], sidecar.threads()
    cycle(200)
    until(lambda: (here(), there()) == before, f"{before}: {(here(), there())}")
    until(lambda: sidecar.threads() <= threads, "threads are back")


def test_o15_ctrl_c_and_start_again(sidecar: Process, rows: fb.Dataset, tmp_path: Path) -> None:
    code = """
import os, signal, sys
import forebay as fb
ds = fb.read_parquet(sys.argv[2])
loader = fb.connect(sys.argv[1]).loader(ds, 256, seed=5, format="numpy")
batches = iter(loader)
for _ in range(10):
    batch = next(batches)
os.kill(os.getpid(), signal.SIGINT)
while True:
    next(batches)
"""
    names = set(os.listdir("/dev/shm"))
    expected = ids(rows.loader(256, seed=5, format="numpy"))
    for _ in range(2):
        process = child(code, str(sidecar.socket), str(tmp_path / "data"))
        status, _, err = finish(process)
        assert status != 0
        assert "KeyboardInterrupt" in err
        loader = sidecar.connect().loader(rows, 256, seed=5, format="numpy")
        assert ids(loader) == expected
        # The beginning of the second epoch.
        assert len(next(iter(loader))["id"]) == 256
        del loader
        sidecar.is_quiet()
    assert set(os.listdir("/dev/shm")) <= names


def test_m01_a_small_dev_shm(rows: fb.Dataset, tmp_path: Path) -> None:
    """Batches of more than 64 MiB in all, where /dev/shm has no more than that."""
    mount = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
    unshare = shutil.which("unshare")
    if not unshare or subprocess.run([unshare, "-m", "sh", "-c", mount], check=False).returncode:
        pytest.skip("this user may not mount a /dev/shm of its own")
    code = """
import os, subprocess, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from sidecars import Process
import forebay as fb
stat = os.statvfs("/dev/shm")
assert stat.f_blocks * stat.f_frsize == 64 << 20
sidecar = Process(Path(sys.argv[2]) / "small")
ds = fb.read_parquet(sys.argv[3])
loader = sidecar.connect().loader(ds, 10_000, format="numpy", shuffle="none", prefetch=2)
kept = [batch for _ in range(240) for batch in loader]
held = sum(array.nbytes for batch in kept for array in batch.values())
assert held > 64 << 20, held
assert stat.f_bfree == os.statvfs("/dev/shm").f_bfree
del kept, loader
sidecar.is_quiet()
assert sidecar.stop() == 0
"""
    line = f'{mount} && exec "$@"'
    here = str(Path(__file__).parent)
    command = [unshare, "-m", "sh", "-c", line, "sh", sys.executable, "-c", code]
    done = subprocess.run(
        [*command, here, str(tmp_path), str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
