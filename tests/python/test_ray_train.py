"""`examples/ray_train.py` on a real Ray and under torchrun: killed in mid-epoch, and resumed."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from support import DEADLINE, ROOT, child, finish, until

import forebay as fb

EXAMPLE = ROOT / "examples" / "ray_train.py"
FLIGHTS = ROOT / "examples" / "data" / "flights"
B = 480
# Three checkpoints come before it, at every fifth step. Ray Train knows of the first two by then: a
# report waits until the one before it was taken.
DIE_AT = 17

needs_ray = pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="needs ray")


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("ray_train_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def whole(example: ModuleType) -> list[list[str]]:
    """The rows of each global batch of an epoch that nothing interrupts."""
    loader = example.dataset(str(FLIGHTS)).loader(
        global_batch_size=B, seed=7, epoch_end="partial", fill=0, rank=0, world_size=1
    )
    return [batch["row"] for batch in loader]


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """A Ray of its own, small, with nothing of it left afterwards; the environment to join it."""
    code = """
import sys, ray
context = ray.init(
    address="local", num_cpus=2, object_store_memory=80_000_000, include_dashboard=False,
    _temp_dir=sys.argv[1], _node_ip_address="127.0.0.1", log_to_driver=False,
)
print("cluster", context.address_info["address"], flush=True)
sys.stdin.read()
ray.shutdown()
"""
    environment = {
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        # A full machine is no reason to kill the workers of a test.
        "RAY_memory_monitor_refresh_ms": "0",
        # Processes that are started ahead cost more than they save on two cores.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
        "RAY_TRAIN_METRICS_ENABLED": "0",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "200",
        "OMP_NUM_THREADS": "1",
    }
    # Not below pytest's folder: the paths of Ray's sockets would be longer than a socket's may be.
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        host = subprocess.Popen(
            [sys.executable, "-c", code, folder],
            env=_environment(**environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert host.stdin is not None
        assert host.stdout is not None
        try:
            words = next((line.split() for line in host.stdout if "cluster" in line), None)
            assert words, "Ray did not start"
            yield {**environment, "RAY_ADDRESS": words[1]}
        finally:
            host.stdin.close()
            host.stdout.close()
            try:
                host.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                host.kill()  # Ray's processes end with the one that started them
                host.wait()
        assert host.returncode == 0
        until(lambda: not _processes_of(folder), f"no process of Ray left: {_processes_of(folder)}")


def _processes_of(folder: str) -> list[str]:
    """Command lines that name a folder."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it ended between the listing and the look
            continue
    return [line for line in lines if folder in line]


def _environment(**more: str) -> dict[str, str]:
    ours = ("RANK", "WORLD_SIZE", "RAY_ADDRESS")
    return {**{k: v for k, v in os.environ.items() if k not in ours}, **more}


def _run(launcher: list[str], folder: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    """One run of the example for one epoch; status and what it printed."""
    where = ["--data", str(FLIGHTS), "--out", str(folder / "run")]
    notes = ["--log-rows", str(folder / "rows")]
    process = subprocess.Popen(
        [sys.executable, *launcher, str(EXAMPLE), "--epochs", "1", *where, *notes, *arguments],
        cwd=ROOT,
        env=_environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(timeout=4 * DEADLINE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # torchrun's workers too
        out, _ = process.communicate()
        message = f"the run hangs; so far it printed:\n{out[-6000:]}"
        raise AssertionError(message) from None
    return process.returncode, out


def _delivered(folder: Path) -> list[dict]:
    """What the workers noted, one record for each step and worker."""
    files = (folder / "rows").iterdir()
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def _check(folder: Path, whole: list[list[str]], worlds: list[int]) -> None:
    """The final model has each row of the epoch once; what was rolled back came again, the same."""
    records = _delivered(folder)
    assert {r["epoch"] for r in records} == {0}
    for r in records:
        batch = whole[r["step"]]
        share = [k * len(batch) // r["world"] for k in (r["rank"], r["rank"] + 1)]
        assert r["rows"] == batch[slice(*share)], (r["step"], r["rank"], r["world"])

    # Each start goes on from a checkpoint; the model has its steps up to where the next began.
    starts = sorted({(r["first"], r["world"]) for r in records})
    assert [world for _, world in starts] == worlds
    assert starts[0][0] == 0
    firsts = [first for first, _ in starts]
    contained: list[str] = []
    for (first, world), end in zip(starts, [*firsts[1:], len(whole)], strict=True):
        assert first % 5 == 0, "only checkpoints are gone on from"
        steps = sorted({r["step"] for r in records if (r["first"], r["world"]) == (first, world)})
        assert set(range(first, end)) <= set(steps)
        for step in range(first, end):
            parts = [
                r for r in records if (r["first"], r["world"], r["step"]) == (first, world, step)
            ]
            parts.sort(key=lambda r: r["rank"])
            assert [r["rank"] for r in parts] == list(range(world))
            contained += [row for r in parts for row in r["rows"]]
    assert contained == list(itertools.chain(*whole))
    assert len(set(contained)) == len(contained) == fb.read_parquet(FLIGHTS).count()
    # The kill fell into the middle: steps that had been made were rolled back.
    for first, next_first in itertools.pairwise(firsts):
        last = max(r["step"] for r in records if r["first"] == first)
        assert first < next_first < last


def _same_model(a: Path, b: Path) -> None:
    """Two checkpoints hold the same model, but for the order in which floats were added."""
    import torch

    one, other = torch.load(a), torch.load(b)
    assert one["loader"] == other["loader"]
    for name, value in one["model"].items():
        torch.testing.assert_close(value, other["model"][name], rtol=1e-3, atol=1e-4)


def _newest(folder: Path) -> Path:
    return max((folder / "run").glob("checkpoint_*/state.pt"))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a run by one worker that nothing interrupts."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "OMP_NUM_THREADS": "1"}
    status, out = _run([], folder, RANK="0", **{"WORLD_SIZE": "1", **environment})
    assert status == 0, out
    return folder / "run" / "state.pt"


@needs_ray
def test_ray_train_with_fewer_workers_after_a_kill(
    cluster: dict[str, str], whole: list[list[str]], uninterrupted: Path, tmp_path: Path
) -> None:
    status, out = _run([], tmp_path, "--workers", "2", "--die-at", str(DIE_AT), **cluster)
    assert status == 1, out
    assert "WorkerGroupError" in out
    status, out = _run([], tmp_path, "--workers", "1", **cluster)
    assert status == 0, out
    _check(tmp_path, whole, [2, 1])
    _same_model(_newest(tmp_path), uninterrupted)


@needs_ray
def test_ray_train_restarts_its_workers_by_itself(
    cluster: dict[str, str], whole: list[list[str]], uninterrupted: Path, tmp_path: Path
) -> None:
    arguments = ["--workers", "2", "--die-at", str(DIE_AT), "--max-failures", "1"]
    status, out = _run([], tmp_path, *arguments, **cluster)
    assert status == 0, out
    _check(tmp_path, whole, [2, 2])
    _same_model(_newest(tmp_path), uninterrupted)


def test_torchrun_with_another_number_of_processes_after_a_kill(
    whole: list[list[str]], uninterrupted: Path, tmp_path: Path
) -> None:
    def torchrun(processes: int) -> list[str]:
        module = ["-m", "torch.distributed.run", "--standalone"]
        return [*module, f"--nproc-per-node={processes}"]

    status, out = _run(torchrun(2), tmp_path, "--die-at", str(DIE_AT), OMP_NUM_THREADS="1")
    assert status != 0, out
    status, out = _run(torchrun(3), tmp_path, OMP_NUM_THREADS="1")
    assert status == 0, out
    _check(tmp_path, whole, [2, 3])
    _same_model(tmp_path / "run" / "state.pt", uninterrupted)


@needs_ray
@pytest.mark.parametrize("version", ["0", "1"])
def test_a_process_that_only_imports_ray_train_is_no_worker_of_it(version: str) -> None:
    """The first version of Ray Train takes every process for rank 0 of 1, with a warning."""
    code = """
import ray.train
import forebay as fb
loader = fb.read_parquet("examples/data/flights", columns=["distance"]).loader(8)
print("rows", loader.rows, "steps", len(loader))
"""
    environment = {"RAY_TRAIN_V2_ENABLED": version, "RANK": "1", "WORLD_SIZE": "2"}
    status, out, err = finish(child(code, **environment))
    assert status == 0, err
    assert f"rows 11473 steps {11473 // 16}" in out
    assert "meant to only be called" not in err
