"""Positions: saved, loaded, on any number of ranks, and the cases of lost and repeated rows."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import DATA, DEADLINE, digest, engine_threads, ids, numbered, write

import forebay as fb

ROWS = 1003
B = 24


@pytest.fixture
def dataset(tmp_path: Path) -> fb.Dataset:
    """1,003 rows in two files with row groups of 50."""
    numbered(tmp_path / "data" / "a.parquet", 600, row_group=50)
    rest = np.arange(600, ROWS)
    write(tmp_path / "data" / "b.parquet", {"id": rest, "half": rest * 0.5}, row_group_size=50)
    return fb.read_parquet(tmp_path / "data")


def _loader(dataset: fb.Dataset, **options: Any) -> fb.Loader:
    batch = {} if "batch_size" in options else {"global_batch_size": B}
    return dataset.loader(**{**batch, "seed": 7, "format": "numpy", **options})


def _ranks(dataset: fb.Dataset, world: int, state: dict | None, **options: Any) -> list[fb.Loader]:
    loaders = [_loader(dataset, rank=r, world_size=world, **options) for r in range(world)]
    for loader in loaders:
        loader.load_state_dict(state or {})
    return loaders


def _hashes(loaders: list[fb.Loader], steps: int | None = None) -> list[str]:
    """One hash for each global batch, the ranks' rows one after the other."""
    out = []
    for batches in itertools.islice(zip(*loaders, strict=True), steps):
        together = {c: np.concatenate([b[c] for b in batches]) for c in batches[0]}
        out.append(digest(iter([together])))
    return out


MIXES = [
    {"lanes": 1, "window": 1},
    {"lanes": B // 2, "window": 1},
    {"lanes": B, "window": 2},
    {"lanes": 2, "window": 20},
    {"lanes": 7, "window": 1},
    {},
    {"shuffle": "none"},
    {"shuffle": "full"},
]


@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_one_order_for_all_threads_prefetches_and_world_sizes(
    dataset: fb.Dataset, mix: dict
) -> None:
    whole = _hashes([_loader(dataset, rank=0, world_size=1, num_threads=1, **mix)])
    assert len(set(whole)) == len(whole) > 40
    for threads, prefetch in itertools.product((1, 2, 4), (1, 16)):
        loader = _loader(
            dataset, rank=0, world_size=1, num_threads=threads, prefetch=prefetch, **mix
        )
        assert _hashes([loader]) == whole, (threads, prefetch)
    for world in (2, 3, 4, 6, 8):
        assert _hashes(_ranks(dataset, world, None, num_threads=1, **mix)) == whole, world


@pytest.mark.parametrize("epoch_end", ["drop", "pad", "partial"])
@pytest.mark.parametrize("mix", [*MIXES[2:5], MIXES[-1]], ids=str)
def test_the_world_size_changes_in_mid_epoch(
    dataset: fb.Dataset, mix: dict, epoch_end: str
) -> None:
    options = {"epoch_end": epoch_end, **mix}
    whole = _hashes([_loader(dataset, rank=0, world_size=1, **options)])
    state: dict = {}
    got: list[str] = []
    for world, steps in ((4, 13), (2, 1), (6, 9), (1, None)):
        loaders = _ranks(dataset, world, state, **options)
        got += _hashes(loaders, steps)
        states = [loader.state_dict() for loader in loaders]
        assert all(s == states[0] for s in states)
        state = json.loads(json.dumps(states[0]))
        assert len(json.dumps(state)) < 1024
    assert got == whole
    assert (state["epoch"], state["samples"]) == (1, 0)


def test_a_resume_at_every_step_and_into_the_next_epoch(dataset: fb.Dataset) -> None:
    options = {"batch_size": 100, "epoch_end": "partial", "lanes": 4, "window": 2}
    base = _loader(dataset, **options)
    epochs = [_hashes([base]), _hashes([base])]
    saving = _loader(dataset, **options)
    states = [saving.state_dict()]
    for _ in saving:
        states.append(saving.state_dict())
    assert [s["samples"] for s in states] == [*range(0, ROWS, 100), ROWS]
    assert [s["finished"] for s in states] == [False] * 11 + [True]
    for step, state in enumerate(states):
        loader = _loader(dataset, **options)
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert len(loader) == 11, "the steps of the whole epoch"
        assert _hashes([loader]) == epochs[0][step:]
        assert _hashes([loader]) == epochs[1]


def test_o01_a_state_of_the_epochs_end_begins_the_next(dataset: fb.Dataset) -> None:
    loader = _loader(dataset)
    first = ids(loader)
    state = loader.state_dict()
    assert (state["epoch"], state["samples"], state["finished"]) == (1, 0, False)
    other = _loader(dataset)
    other.load_state_dict(state)
    assert other.epoch == 1
    second = ids(other)
    assert second == ids(loader)
    assert sorted(second) != sorted(first) or second != first


def test_o02_nothing_is_lost_right_after_a_resume(dataset: fb.Dataset) -> None:
    options = {"prefetch": 16, "epoch_end": "partial"}
    whole = ids(_loader(dataset, **options))
    got: list[int] = []
    state: dict = {}
    # One batch at a time, each in a loader of its own that has made many more ahead.
    for _ in range(len(_loader(dataset, **options))):
        loader = _loader(dataset, **options)
        loader.load_state_dict(state)
        got += next(iter(loader))["id"].tolist()
        state = loader.state_dict()
    assert got == whole


def test_o03_epochs_after_a_resumed_one_are_whole(dataset: fb.Dataset) -> None:
    loader = _loader(dataset, epoch_end="partial")
    batches = iter(loader)
    head = [i for _ in range(5) for i in next(batches)["id"].tolist()]
    other = _loader(dataset, epoch_end="partial")
    other.load_state_dict(loader.state_dict())
    assert sorted(head + ids(other)) == list(range(ROWS))
    for _ in range(2):
        assert sorted(ids(other)) == list(range(ROWS))


def test_o04_a_second_resume_goes_on_from_the_second_place(dataset: fb.Dataset) -> None:
    options = {"batch_size": 10, "shuffle": "none"}
    first = _loader(dataset, **options)
    for _ in zip(range(3), first, strict=False):
        pass
    second = _loader(dataset, **options)
    second.load_state_dict(first.state_dict())
    assert next(iter(second))["id"].tolist() == list(range(30, 40))
    third = _loader(dataset, **options)
    third.load_state_dict(second.state_dict())
    assert third.state_dict()["samples"] == 40
    assert next(iter(third))["id"].tolist() == list(range(40, 50))


def test_o05_small_blocks_and_a_stop_at_ten(tmp_path: Path) -> None:
    numbered(tmp_path / "a.parquet", 50, row_group=10)
    dataset = fb.read_parquet(tmp_path)
    options = {"global_batch_size": 4, "epoch_end": "partial", "seed": 1}
    loaders = _ranks(dataset, 4, None, **options)
    head = _hashes(loaders, 10)
    again = _ranks(dataset, 4, loaders[0].state_dict(), **options)
    assert head + _hashes(again) == _hashes([_loader(dataset, **options)])
    for _ in range(2):
        rows = [i for loader in again for i in ids(loader)]
        assert sorted(rows) == list(range(50))


def test_o06_the_loader_that_saved_loads(dataset: fb.Dataset) -> None:
    loader = _loader(dataset)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    wanted = [next(batches)["id"].tolist() for _ in range(4)]
    loader.load_state_dict(state)
    # The old iterator goes on, and no longer moves the position.
    next(batches)
    assert loader.state_dict() == state
    assert [b["id"].tolist() for b in itertools.islice(loader, 4)] == wanted
    before = loader.state_dict()
    loader.load_state_dict({})
    assert loader.state_dict() == before
    # A loaded place holds once; the loop after it starts the epoch again.
    assert ids(loader) == ids(_loader(dataset))


def test_o07_fewer_ranks_get_all_rows(dataset: fb.Dataset) -> None:
    options = {"epoch_end": "partial"}
    two = _ranks(dataset, 2, None, **options)
    rows = [i for _, *b in zip(range(7), *two, strict=False) for x in b for i in x["id"].tolist()]
    one = _ranks(dataset, 1, two[1].state_dict(), **options)
    assert sorted(rows + ids(one[0])) == list(range(ROWS))


def test_o08_o10_blocks_of_all_sizes_on_more_ranks_than_files(tmp_path: Path) -> None:
    numbered(tmp_path / "a.parquet", 30, row_group=30)
    numbered(tmp_path / "b.parquet", 10, row_group=10)
    dataset = fb.read_parquet(tmp_path)
    for mix in ({}, {"lanes": 4, "window": 1}, {"shuffle": "none"}):
        ranks = _ranks(dataset, 8, None, global_batch_size=8, epoch_end="partial", **mix)
        batches = [list(r) for r in ranks]
        assert {len(b) for b in batches} == {5}
        assert {len(x["id"]) for b in batches for x in b} == {1}


def test_o09_every_rank_makes_the_same_steps(tmp_path: Path) -> None:
    numbered(tmp_path / "a.parquet", 5, row_group=2)
    dataset = fb.read_parquet(tmp_path)
    for end, steps in (("drop", 1), ("pad", 2), ("partial", 2)):
        for source, n in ((dataset, steps), (dataset.filter("id = 4"), int(end != "drop"))):
            ranks = _ranks(source, 2, None, batch_size=2, epoch_end=end)
            assert [len(r) for r in ranks] == [n, n]
            assert [len(list(r)) for r in ranks] == [n, n]
    last = [list(r)[-1] for r in _ranks(dataset.filter("id = 4"), 2, None, epoch_end="partial")]
    assert sorted(len(b["id"]) for b in last) == [0, 1]
    assert {b["id"].dtype for b in last} == {np.dtype(np.int64)}


def test_o11_more_lanes_than_rows(tmp_path: Path) -> None:
    numbered(tmp_path / "a.parquet", 2)
    dataset = fb.read_parquet(tmp_path)
    options = {"batch_size": 1, "lanes": 64, "window": 1, "epoch_end": "partial"}
    assert sorted(ids(_loader(dataset, **options))) == [0, 1]
    padded = _loader(dataset, **{**options, "batch_size": 8, "epoch_end": "pad"})
    (batch,) = list(padded)
    assert set(batch["id"].tolist()) == {0, 1}
    assert batch["_repeat"].sum() == 6


def test_o12_a_second_epoch_is_another_order_and_reproducible(dataset: fb.Dataset) -> None:
    loader = _loader(dataset)
    first, second = ids(loader), ids(loader)
    assert first != second
    again = _loader(dataset)
    again.set_epoch(1)
    assert ids(again) == second


def test_o13_o14_evaluation_gets_every_row_and_the_last_batch(dataset: fb.Dataset) -> None:
    for batch in (1, 24, 1000):
        loader = _loader(dataset, batch_size=batch, shuffle="none")
        assert ids(loader) == list(range(ROWS))


def test_o15_interrupted_and_started_again(dataset: fb.Dataset) -> None:
    for _ in range(3):
        loader = _loader(dataset)
        batches = iter(loader)
        next(batches)
        batches.close()
    loader = _loader(dataset)
    ids(loader)
    assert len(ids(loader)) == ROWS // B * B
    assert not [name for name in engine_threads() if "cpu" in name]


def test_set_epoch_keeps_a_loaded_place_of_that_epoch(dataset: fb.Dataset) -> None:
    saving = _loader(dataset)
    saving.set_epoch(4)
    for _ in zip(range(6), saving, strict=False):
        pass
    state = saving.state_dict()
    same = _loader(dataset)
    same.load_state_dict(state)
    same.set_epoch(4)
    assert len(list(same)) == len(saving) - 6
    other = _loader(dataset)
    other.load_state_dict(state)
    other.set_epoch(5)
    assert len(list(other)) == len(saving)


def test_another_batch_size_goes_on_with_the_same_order(dataset: fb.Dataset) -> None:
    small = _loader(dataset, batch_size=24, epoch_end="partial", lanes=1)
    batches = iter(small)
    head = [i for _ in range(3) for i in next(batches)["id"].tolist()]
    large = _loader(dataset, batch_size=50, epoch_end="partial", lanes=1)
    large.load_state_dict(small.state_dict())
    assert head + ids(large) == ids(_loader(dataset, batch_size=24, epoch_end="partial", lanes=1))


def test_lanes_and_window_of_the_state_hold(dataset: fb.Dataset) -> None:
    saved = _loader(dataset, lanes=8, window=1)
    batches = iter(saved)
    next(batches)
    loader = _loader(dataset, lanes=2, window=3)
    loader.load_state_dict(saved.state_dict())
    assert (loader.stats()["lanes"], loader.stats()["window"]) == (8, 1)
    assert [b["id"].tolist() for b in loader] == [b["id"].tolist() for b in batches]


def test_states_that_do_not_fit_are_refused(dataset: fb.Dataset, tmp_path: Path) -> None:
    loader = _loader(dataset)
    next(iter(loader))
    state = loader.state_dict()
    numbered(tmp_path / "c.parquet", 10)
    wrong = {
        "the dataset": _loader(fb.read_parquet(tmp_path / "c.parquet")),
        "the plan": _loader(dataset.filter("id >= 0")),
        "seed": _loader(dataset, seed=8),
        "shuffle": _loader(dataset, shuffle="none"),
    }
    for what, other in wrong.items():
        before = other.state_dict()
        with pytest.raises(fb.InvalidInputError, match=what):
            other.load_state_dict(state)
        assert other.state_dict() == before
    # Where both differ, the hint is about the dataset, which is what is told.
    both = _loader(fb.read_parquet(tmp_path / "c.parquet").filter("id >= 0"))
    with pytest.raises(fb.InvalidInputError, match="the dataset") as caught:
        both.load_state_dict(state)
    assert "files are not the same" in str(caught.value.hint)
    with pytest.raises(fb.InvalidInputError, match=r"now they are .*id >= 0"):
        wrong["the plan"].load_state_dict(state)
    for key in state:
        cut = {k: v for k, v in state.items() if k != key}
        says = "not the state" if key == "version" else key
        with pytest.raises(fb.InvalidInputError, match=says):
            loader.load_state_dict(cut)
    with pytest.raises(fb.UnsupportedError, match="version 2"):
        loader.load_state_dict({**state, "version": 2})
    with pytest.raises(fb.InvalidInputError, match="samples"):
        loader.load_state_dict({**state, "samples": ROWS + 1})
    with pytest.raises(fb.InvalidInputError, match="epoch"):
        loader.load_state_dict({**state, "epoch": -1})
    with pytest.raises(TypeError, match="state_dict"):
        loader.load_state_dict({"a": object()})


def test_a_copy_of_the_data_and_another_machine_load_the_state(
    dataset: fb.Dataset, tmp_path: Path
) -> None:
    loader = _loader(dataset)
    batches = iter(loader)
    next(batches)
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for file in (tmp_path / "data").iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    other = _loader(fb.read_parquet(copy), num_threads=1, prefetch=1, memory_limit="64MiB")
    other.load_state_dict(loader.state_dict())
    assert [b["id"].tolist() for b in other] == [b["id"].tolist() for b in batches]


def test_a_killed_trainer_goes_on_at_its_checkpoint(dataset: fb.Dataset, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        """
import json, os, signal, sys
import forebay as fb
folder, checkpoint, log, stop = sys.argv[1:5]
dataset = fb.read_parquet(folder)
loader = dataset.loader(global_batch_size=24, seed=7, format="numpy", lanes=4, window=1)
if os.path.exists(checkpoint):
    loader.load_state_dict(json.load(open(checkpoint)))
start = loader.state_dict()["samples"] // 24
for step, batch in enumerate(loader, start):
    with open(log, "a") as out:
        out.write(f"{step} {batch['id'].tolist()}\\n")
    if step % 5 == 4:
        with open(checkpoint + ".tmp", "w") as out:
            json.dump(loader.state_dict(), out)
        os.replace(checkpoint + ".tmp", checkpoint)
    if step == int(stop):
        os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    log, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    for stop, status in ((7, -signal.SIGKILL), (21, -signal.SIGKILL), (-1, 0)):
        arguments = [str(tmp_path / "data"), str(checkpoint), str(log), str(stop)]
        result = subprocess.run(
            [sys.executable, str(script), *arguments], timeout=DEADLINE, check=False
        )
        assert result.returncode == status
    # Steps after a checkpoint are rolled back and delivered again, identically.
    steps: dict[int, set[str]] = {}
    for line in log.read_text().splitlines():
        step, rows = line.split(" ", 1)
        steps.setdefault(int(step), set()).add(rows)
    assert sorted(steps) == list(range(ROWS // B))
    assert {len(rows) for rows in steps.values()} == {1}
    whole = [str(b["id"].tolist()) for b in _loader(dataset, lanes=4, window=1)]
    assert [rows.pop() for _, rows in sorted(steps.items())] == whole


def test_s11_a_file_that_changed_is_named(dataset: fb.Dataset, tmp_path: Path) -> None:
    loader = _loader(dataset)
    changed = numbered(tmp_path / "data" / "a.parquet", 601, row_group=50)
    with pytest.raises(fb.ChangedError) as error:
        list(loader)
    assert changed in str(error.value)
    with pytest.raises(fb.InvalidInputError, match="the dataset"):
        _loader(fb.read_parquet(tmp_path / "data")).load_state_dict(loader.state_dict())


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_as_torch_is_the_same_sequence(dataset: fb.Dataset, workers: int) -> None:
    from torch.utils.data import DataLoader

    loader = dataset.loader(32, seed=3, epoch_end="partial", lanes=4, window=1)
    wanted = [b["id"].tolist() for b in loader]
    loader.set_epoch(0)
    steps = DataLoader(loader.as_torch(), batch_size=None, num_workers=workers)
    assert len(steps) == len(wanted)
    assert [b["id"].tolist() for b in steps] == wanted


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [1, 3])
def test_as_torch_delivers_the_epoch_that_was_set(
    dataset: fb.Dataset, workers: int, persistent: bool
) -> None:
    """Also after a loop that was left, and after a state; a loop without either is the last one."""
    from torch.utils.data import DataLoader

    loader, own = _loader(dataset), _loader(dataset)
    next(iter(loader))  # a look at the first batch
    steps = DataLoader(
        loader.as_torch(), batch_size=None, num_workers=workers, persistent_workers=persistent
    )

    def wanted(epoch: int) -> list[list[int]]:
        own.set_epoch(epoch)
        return [b["id"].tolist() for b in own]

    assert [b["id"].tolist() for b in steps] == wanted(0)
    for epoch in (5, 0, 3):
        loader.set_epoch(epoch)
        for _ in steps:
            break
        for _ in range(2):
            assert [b["id"].tolist() for b in steps] == wanted(epoch)
    own.set_epoch(3)
    rest = iter(own)
    for _ in range(4):
        next(rest)
    loader.load_state_dict(own.state_dict())
    assert [b["id"].tolist() for b in steps] == [b["id"].tolist() for b in rest]


def test_as_torch_in_spawned_workers(dataset: fb.Dataset, tmp_path: Path) -> None:
    script = tmp_path / "spawned.py"
    script.write_text(
        """
import sys
import forebay as fb
from torch.utils.data import DataLoader
if __name__ == "__main__":
    loader = fb.read_parquet(sys.argv[1]).loader(global_batch_size=32, rank=1, world_size=2, seed=3)
    epochs = [[b["id"].tolist() for b in loader] for _ in range(2)]
    loader.set_epoch(0)
    next(iter(loader))  # a look at the first batch
    for persistent in (False, True):
        steps = DataLoader(loader.as_torch(), batch_size=None, num_workers=2,
                           persistent_workers=persistent, multiprocessing_context="spawn")
        for epoch in (0, 1, 0):
            loader.set_epoch(epoch)
            assert [b["id"].tolist() for b in steps] == epochs[epoch], (persistent, epoch)
"""
    )
    folder = str(tmp_path / "data")
    subprocess.run([sys.executable, str(script), folder], timeout=2 * DEADLINE, check=True)


def test_the_world_is_fixed_at_the_first_use(
    dataset: fb.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    import forebay._loader as module

    explicit = ids(_loader(dataset, rank=1, world_size=2))
    loader = _loader(dataset)
    monkeypatch.setattr(module, "discover", lambda: (1, 2))
    assert ids(loader) == explicit
    monkeypatch.setattr(module, "discover", lambda: (0, 2))
    for use in (len, iter, lambda x: x.state_dict()):
        with pytest.raises(RuntimeError, match="rank 1 of 2"):
            use(loader)


FLIGHTS = DATA / "flights"


@pytest.mark.skipif(not FLIGHTS.exists(), reason="needs the flights of the shared data")
def test_flights_stop_at_a_third_and_go_on_with_two_and_six_ranks() -> None:
    dataset = fb.read_parquet(FLIGHTS, columns=["dep_delay", "carrier", "distance"])

    def hashes(loaders: list[fb.Loader], steps: int | None = None) -> list[str]:
        out = []
        for batches in itertools.islice(zip(*loaders, strict=True), steps):
            sha = hashlib.sha256()
            for column in batches[0]:
                values = [b[column] for b in batches]
                if isinstance(values[0], list):
                    sha.update(repr(list(itertools.chain(*values))).encode())
                else:
                    sha.update(np.concatenate(values).tobytes())
            out.append(sha.hexdigest())
        return out

    options = {"global_batch_size": 1200, "fill": 0, "epoch_end": "partial"}
    whole = hashes([_loader(dataset, **options)])
    third = len(whole) // 3
    four = _ranks(dataset, 4, None, **options)
    got = hashes(four, third)
    two = _ranks(dataset, 2, four[3].state_dict(), **options)
    got += hashes(two, third)
    six = _ranks(dataset, 6, two[0].state_dict(), **options)
    got += hashes(six)
    assert got == whole


def test_ranks_of_torchrun(dataset: fb.Dataset, tmp_path: Path) -> None:
    """Two processes with gloo find their ranks by themselves and share the epoch."""
    script = tmp_path / "ranks.py"
    script.write_text(
        """
import json, sys
import torch.distributed as dist
import forebay as fb
loader = fb.read_parquet(sys.argv[1]).loader(global_batch_size=24, seed=7, epoch_end="partial")
dist.init_process_group("gloo")
rows = [i for b in loader for i in b["id"].tolist()]
open(f"{sys.argv[2]}/rows-{dist.get_rank()}.json", "w").write(json.dumps(rows))
dist.destroy_process_group()
"""
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    result = subprocess.run(
        [*command, str(script), str(tmp_path / "data"), str(tmp_path)],
        timeout=4 * DEADLINE,
        check=False,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    rows = [json.loads((tmp_path / f"rows-{r}.json").read_text()) for r in range(2)]
    assert sorted(rows[0] + rows[1]) == list(range(ROWS))
    assert abs(len(rows[0]) - len(rows[1])) <= len(rows[0]) / 10
