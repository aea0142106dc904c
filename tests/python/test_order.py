"""Order: shuffles, epochs, ends of epochs, ranks, and the same bytes for any number of threads."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support import digest, ids, in_order, numbered

import forebay as fb

ROWS = 1003


@pytest.fixture
def dataset(tmp_path: Path) -> fb.Dataset:
    """1,003 rows in one file with row groups of 50."""
    numbered(tmp_path / "a.parquet", ROWS, row_group=50)
    return fb.read_parquet(tmp_path)


def _ids(dataset: fb.Dataset, epoch: int = 0, **options) -> list[int]:
    options = {"batch_size": 16, "epoch_end": "partial", "format": "numpy", **options}
    loader = dataset.loader(**options)
    loader.set_epoch(epoch)
    return ids(loader)


def test_file_order(dataset: fb.Dataset) -> None:
    assert _ids(dataset, shuffle="none") == list(range(ROWS))


@pytest.mark.parametrize("mix", [{}, {"lanes": 1, "window": 1}, {"lanes": 4, "window": 2}])
def test_window_shuffle_delivers_every_row_once(dataset: fb.Dataset, mix: dict) -> None:
    for epoch in range(3):
        order = _ids(dataset, epoch, **mix)
        assert sorted(order) == list(range(ROWS))
        assert order != list(range(ROWS))


@pytest.mark.parametrize("mix", [{}, {"lanes": 4, "window": 2}])
def test_shuffle_depends_on_seed_and_epoch_and_on_nothing_else(
    dataset: fb.Dataset, mix: dict
) -> None:
    base = _ids(dataset, seed=1, **mix)
    assert _ids(dataset, seed=1, **mix) == base
    for other in (
        {"num_threads": 1},
        {"num_threads": 4},
        {"prefetch": 1},
        {"prefetch": 16},
        {"memory_limit": "64MiB"},
    ):
        assert _ids(dataset, seed=1, **mix, **other) == base, other
    assert _ids(dataset, seed=2, **mix) != base
    assert _ids(dataset, 1, seed=1, **mix) != base


def test_a_full_shuffle_permutes_all_rows(dataset: fb.Dataset) -> None:
    loader = dataset.loader(16, shuffle="full", seed=4, epoch_end="partial", format="numpy")
    first, second = ids(loader), ids(loader)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert _ids(dataset, 1, shuffle="full", seed=4, num_threads=1) == second
    # Its rows are read once for all epochs.
    read = loader.stats()["bytes_read"]
    assert len(ids(loader)) == ROWS
    assert loader.stats()["bytes_read"] == read
    # Where a row comes has nothing to do with where it lies.
    assert abs(np.corrcoef(first, np.arange(ROWS))[0, 1]) < 0.1


def test_a_full_shuffle_of_texts_and_filtered_rows(dataset: fb.Dataset) -> None:
    named = dataset.with_column("name", "CAST(id AS VARCHAR)").filter("id % 3 = 0")
    loader = named.loader(10, shuffle="full", seed=1, epoch_end="pad", format="numpy")
    batches = list(loader)
    rows = [int(i) for b in batches for i in b["id"]]
    assert [n for b in batches for n in b["name"]] == [str(i) for i in rows]
    assert set(rows) == set(range(0, ROWS, 3))
    assert sum(int(b["_repeat"].sum()) for b in batches) == len(rows) - len(set(rows))


def test_rows_are_mixed_beyond_their_row_group(dataset: fb.Dataset) -> None:
    order = _ids(dataset)
    groups = {row // 50 for row in order[:50]}
    assert len(groups) > 10


def test_lanes_and_window_are_taken_as_given(dataset: fb.Dataset) -> None:
    stats = dataset.loader(16, lanes=4, window=2).stats()
    assert (stats["lanes"], stats["window"]) == (4, 2)
    assert dataset.loader(16, shuffle="none").stats()["lanes"] == 1
    # One lane with windows of one block: a block's rows come together, in an order of their own.
    order = _ids(dataset, lanes=1, window=1)
    changes = sum(a // 50 != b // 50 for a, b in itertools.pairwise(order))
    assert changes == 20
    assert order[:50] != sorted(order[:50])
    for name in ("lanes", "window"):
        with pytest.raises(fb.InvalidInputError, match=name):
            dataset.loader(16, **{name: 0})


def test_epochs_follow_each_other(dataset: fb.Dataset) -> None:
    loader = dataset.loader(16, seed=5, epoch_end="partial", format="numpy")
    assert loader.epoch == 0
    first, second = ids(loader), ids(loader)
    assert loader.epoch == 2
    assert first == _ids(dataset, 0, seed=5)
    assert second == _ids(dataset, 1, seed=5)
    loader.set_epoch(0)
    assert ids(loader) == first
    # Leaving early does not raise the epoch: the next loop starts the same one again.
    loader.set_epoch(1)
    for _ in loader:
        break
    assert loader.epoch == 1
    assert ids(loader) == second
    loader.set_epoch(2**63 - 1)
    for wrong in (-1, 2**63):
        with pytest.raises(ValueError, match="epoch"):
            loader.set_epoch(wrong)


@pytest.mark.parametrize("shuffle", ["none", "window", "full"])
@pytest.mark.parametrize("batch_size", [1, 7, 59, 1003, 5000])
def test_epoch_ends(dataset: fb.Dataset, shuffle: str, batch_size: int) -> None:
    full, rest = divmod(ROWS, batch_size)
    for epoch_end in ("drop", "partial", "pad"):
        options = {"shuffle": shuffle, "epoch_end": epoch_end, "format": "numpy"}
        loader = dataset.loader(batch_size, **options)
        batches = list(loader)
        assert len(loader) == len(batches) == full + (0 if epoch_end == "drop" else rest > 0)
        counts = Counter(int(i) for b in batches for i in b["id"])
        sizes = [len(b["id"]) for b in batches]
        if epoch_end == "partial":
            assert sizes == [batch_size] * full + ([rest] if rest else [])
            assert counts == Counter(range(ROWS))
        else:
            assert set(sizes) <= {batch_size}
        if epoch_end == "drop":
            assert max(counts.values(), default=1) == 1
        if epoch_end == "pad":
            repeat = np.concatenate([b["_repeat"] for b in batches])
            rows = np.concatenate([b["id"] for b in batches])
            assert repeat.dtype == bool
            assert repeat.sum() == len(batches) * batch_size - ROWS
            assert sorted(rows[~repeat].tolist()) == list(range(ROWS))


def test_default_epoch_ends(dataset: fb.Dataset) -> None:
    assert len(dataset.loader(100)) == 10
    assert len(dataset.loader(100, shuffle="none")) == 11


def test_drop_with_fewer_rows_than_a_batch_says_so(
    dataset: fb.Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    loader = dataset.loader(2000)
    assert len(loader) == 0
    assert list(loader) == []
    (record,) = caplog.records
    assert record.name == "forebay"
    assert "1003" in record.getMessage()
    assert "2000" in record.getMessage()


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("mix", [{}, {"lanes": 4, "window": 1}])
def test_ranks_cut_the_same_global_batches(dataset: fb.Dataset, world: int, mix: dict) -> None:
    options = {"seed": 3, "epoch_end": "pad", "format": "numpy", **mix}
    whole = list(dataset.loader(global_batch_size=16, rank=0, world_size=1, **options))
    ranks = [
        list(dataset.loader(batch_size=16 // world, rank=r, world_size=world, **options))
        for r in range(world)
    ]
    assert {len(rank) for rank in ranks} == {len(whole)}
    for step, batch in enumerate(whole):
        for column in batch:
            together = np.concatenate([rank[step][column] for rank in ranks])
            assert np.array_equal(together, batch[column])


def test_rank_and_world_size_from_the_launcher(
    dataset: fb.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    explicit = _ids(dataset, rank=1, world_size=2)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert _ids(dataset) == explicit
    assert len(_ids(dataset, rank=0, world_size=1)) == ROWS
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(fb.InvalidInputError, match="WORLD_SIZE"):
        dataset.loader(8)


def test_filters_keep_the_counts_exact(dataset: fb.Dataset) -> None:
    odd = dataset.filter("id % 2 = 1")
    expected = list(range(1, ROWS, 2))
    assert odd.count() == len(expected)
    assert odd.loader(10, epoch_end="partial").rows == len(expected)
    assert _ids(odd, shuffle="none") == expected
    assert sorted(_ids(odd)) == expected
    assert sorted(_ids(odd, lanes=4, window=2)) == expected
    assert _ids(odd.limit(7), shuffle="none") == expected[:7]
    assert _ids(dataset.limit(7).filter("id % 2 = 1"), shuffle="none") == [1, 3, 5]
    assert _ids(dataset.limit(120).filter("id > 100").limit(5), shuffle="none") == [
        *range(101, 106)
    ]


def test_a_short_last_batch_is_not_taken_for_many_that_are_held(
    dataset: fb.Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    for rank in (0, 1):
        loader = dataset.loader(
            global_batch_size=334, shuffle="none", format="numpy", rank=rank, world_size=2
        )
        for _ in range(40):
            for batch in loader:
                del batch
    assert caplog.records == []


@pytest.mark.parametrize(
    ("steps", "options", "words"),
    [
        ("id >= 0", {"batch_size": ROWS + 1}, "partial"),
        ("id < 0", {"batch_size": 8}, "no row is left"),
        ("id < 0", {"batch_size": 8, "shuffle": "none"}, "no row is left"),
        ("id < 0", {"batch_size": 8, "epoch_end": "pad"}, "no row is left"),
    ],
)
def test_an_epoch_without_steps_is_told(
    dataset: fb.Dataset, caplog: pytest.LogCaptureFixture, steps: str, options: dict, words: str
) -> None:
    loader = dataset.filter(steps).loader(**options)
    assert len(loader) == len(list(loader)) == 0
    (record,) = caplog.records
    assert "there are no steps" in record.getMessage()
    assert words in record.getMessage()


def test_two_loaders_at_once(dataset: fb.Dataset) -> None:
    left = dataset.loader(16, seed=1, epoch_end="partial", format="numpy")
    right = dataset.filter("id < 500").loader(16, seed=2, epoch_end="partial", format="numpy")
    alone = (ids(left), ids(right))
    left.set_epoch(0)
    right.set_epoch(0)
    a, b = iter(left), iter(right)
    together: tuple[list[int], list[int]] = ([], [])
    live = [(a, together[0]), (b, together[1])]
    while live:
        for pair in list(live):
            batch = next(pair[0], None)
            if batch is None:
                live.remove(pair)
            else:
                pair[1].extend(batch["id"].tolist())
    assert together == alone


def test_two_epochs_of_one_loader_at_once(dataset: fb.Dataset) -> None:
    loader = dataset.loader(16, format="numpy")
    a, b = iter(loader), iter(loader)
    for one, other in zip(a, b, strict=True):
        assert np.array_equal(one["id"], other["id"])


def test_photographs_are_the_same_bytes_however_they_are_made(photographs: str) -> None:
    ops = [
        fb.RandomResizedCrop(224),
        fb.RandomHorizontalFlip(),
        fb.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
    dataset = fb.read_parquet(photographs).map_image("image", ops, mode="RGB")

    def epoch(**options) -> str:
        loader = dataset.loader(64, shuffle="window", seed=7, format="numpy", **options)
        batches = list(loader)
        assert [b["image"].shape for b in batches] == [(64, 3, 224, 224)] * 3
        assert {b["image"].dtype for b in batches} == {np.dtype(np.float32)}
        return digest(batches)

    one = epoch(num_threads=1, prefetch=1)
    assert epoch(num_threads=2, prefetch=16) == one
    assert epoch(num_threads=2, prefetch=1) == one


def test_in_order_helper_is_the_file_order(dataset: fb.Dataset) -> None:
    rows = np.concatenate([b["half"] for b in in_order(dataset)])
    assert np.array_equal(rows, np.arange(ROWS) * 0.5)


def test_a_column_of_the_name_repeat_is_not_lost(dataset: fb.Dataset) -> None:
    """`pad` marks repeats in a column `_repeat`; one of that name is an error, not replaced."""
    with pytest.raises(fb.InvalidInputError, match="_repeat"):
        dataset.with_column("_repeat", "id").loader(16, epoch_end="pad")
    assert len(dataset.with_column("_repeat", "id").loader(16)) == ROWS // 16
