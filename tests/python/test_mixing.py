"""How well an order mixes: figures worked out by hand, extreme orders, and orders of loaders."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from support import write

import forebay as fb

ROWS = 6000
CLASSES = 10


def test_figures_worked_out_by_hand() -> None:
    # Rows 2 0 3 1: differences of the ranks to the places 2, -1, 1, -2, so 1 - 6 · 10 / (4 · 15).
    m = fb.mixing([2, 0, 3, 1], files=[7, 7, 9, 9], distance=3, batch_size=2)
    assert m.rows == 4
    assert m.rank_correlation == pytest.approx(0.0)
    # Files in the order 9 7 9 7. In a permutation, one of three others is of the same file.
    assert m.same_file.tolist() == pytest.approx([0.0, 3.0, 0.0])
    assert m.batch_file == 0.0
    assert m.same_class is None
    assert m.batch_class is None
    # Five rows, three of one class: two others have the same one in (3 · 2 + 2 · 1) / 20 of cases.
    m = fb.mixing([4, 0, 1, 2, 3], classes=list("aaabb"), distance=2, batch_size=3)
    assert m.rank_correlation == pytest.approx(1 - 6 * (16 + 4) / (5 * 24))
    # In the order b a a a b: neighbours are the same twice in four, two apart once in three.
    assert m.same_class.tolist() == pytest.approx([0.5 / 0.4, 1 / 3 / 0.4])
    # Batches b a a and a b: one pair of three, and none of one.
    assert m.batch_class == pytest.approx(0.25 / 0.4)


def test_equal_rows_share_their_rank() -> None:
    # Ranks 0.5 0.5 2 against places 0 1 2: covariance 1.5, variances 2 and 1.5.
    assert fb.mixing([3, 3, 8], distance=1).rank_correlation == pytest.approx(1.5 / math.sqrt(3))
    assert math.isnan(fb.mixing([3, 3, 3], distance=1).rank_correlation)


def test_extreme_orders() -> None:
    n = 1000
    classes = np.arange(n) // 100
    forward = fb.mixing(np.arange(n), classes=classes, distance=50, batch_size=100)
    assert forward.rank_correlation == pytest.approx(1)
    assert forward.batch_class == pytest.approx(999 / 99)
    # d places apart: the last 100 - d of each class have the same one, of n - d pairs.
    d = np.arange(1, 51)
    assert np.allclose(forward.same_class, 10 * (100 - d) / (n - d) / (99 / 999))
    backward = fb.mixing(np.arange(n)[::-1], classes=classes, distance=50)
    assert backward.rank_correlation == pytest.approx(-1)
    assert np.allclose(backward.same_class, forward.same_class)
    # One of each class in turn: never the same, but for each tenth.
    turns = fb.mixing(np.arange(n).reshape(10, 100).T.ravel(), classes=classes, distance=10)
    assert turns.same_class[:9].tolist() == [0] * 9
    assert turns.same_class[9] == pytest.approx(999 / 99)
    # All of one class, and each of its own.
    assert fb.mixing(np.arange(9), classes=[1] * 9, distance=8).same_class.tolist() == [1] * 8
    alone = fb.mixing(np.arange(9), classes=np.arange(9), distance=2, batch_size=3)
    assert np.isnan(alone.same_class).all()
    assert math.isnan(alone.batch_class)


def test_the_yardstick_is_a_permutation_with_a_seed() -> None:
    n = 20_000
    files, classes = np.arange(n) // 500, np.arange(n) % 7
    m = fb.mixing(np.arange(n), files=files, classes=classes, batch_size=200, seed=3)
    for figure in (m.permuted.same_file, m.permuted.same_class, m.permuted.batch_file):
        assert np.allclose(figure, 1, atol=0.2)
    assert abs(m.permuted.rank_correlation) < 5 / math.sqrt(n)
    assert m.permuted.permuted is None
    again = fb.mixing(np.arange(n), files=files, seed=3).permuted
    assert again.same_file.tolist() == m.permuted.same_file.tolist()
    other = fb.mixing(np.arange(n), files=files, seed=4).permuted
    assert other.same_file.tolist() != m.permuted.same_file.tolist()
    # A permutation that is measured is as its yardstick.
    order = np.random.default_rng(9).permutation(n)
    assert np.allclose(fb.mixing(order, classes=classes).same_class, 1, atol=0.1)
    assert "same class" in repr(m)


def test_wrong_arguments_are_named() -> None:
    for order in ([1], [[0, 1]], [0.5, 1.5], ["a", "b"]):
        with pytest.raises(ValueError, match="order"):
            fb.mixing(order)
    for distance in (0, -1, 3, 99):
        with pytest.raises(ValueError, match="distance"):
            fb.mixing([0, 1, 2], distance=distance)
    with pytest.raises(ValueError, match="batch_size"):
        fb.mixing([0, 1, 2], distance=1, batch_size=0)
    for name in ("files", "classes"):
        for groups in ([0, 1], [[0, 1, 2]]):
            with pytest.raises(ValueError, match=name):
                fb.mixing([0, 1, 2], distance=1, **{name: groups})
    with pytest.raises(ValueError, match="files"):
        fb.mixing([-1, 0], distance=1, files=[0, 1])


@pytest.fixture(scope="module")
def by_class(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    """6,000 rows sorted by class, in three files with blocks of 100 rows."""
    folder = tmp_path_factory.mktemp("by-class")
    for part in range(3):
        rows = np.arange(part * ROWS // 3, (part + 1) * ROWS // 3)
        columns = {"id": rows * 3, "name": [f"n{i}" for i in rows], "label": rows * CLASSES // ROWS}
        columns["part"] = np.full(rows.size, part)
        write(folder / f"{part}.parquet", columns, row_group_size=100)
    return fb.read_parquet(folder)


def _order(dataset: fb.Dataset, **options) -> np.ndarray:
    loader = dataset.loader(
        60, epoch_end="partial", format="numpy", rank=0, world_size=1, **options
    )
    return np.concatenate([batch["id"] for batch in loader]) // 3


@pytest.mark.parametrize("options", [{}, {"lanes": 1, "window": 1}, {"lanes": 4, "window": 3}])
@pytest.mark.parametrize("key", ["id", "name"])
def test_the_order_of_a_loader(by_class: fb.Dataset, options: dict, key: str) -> None:
    options = {"seed": 5, **options}
    found = fb.mixing_of(
        by_class, key, files="part", classes="label", batch_size=60, distance=9, **options
    )
    ordinals = np.arange(ROWS)
    wanted = fb.mixing(
        _order(by_class, **options),
        files=ordinals // (ROWS // 3),
        classes=ordinals * CLASSES // ROWS,
        distance=9,
        batch_size=60,
        seed=5,
    )
    assert found.rank_correlation == wanted.rank_correlation
    for name in ("same_file", "same_class"):
        assert getattr(found, name).tolist() == getattr(wanted, name).tolist()
        assert getattr(found.permuted, name).tolist() == getattr(wanted.permuted, name).tolist()
    assert (found.batch_file, found.batch_class) == (wanted.batch_file, wanted.batch_class)


def test_larger_windows_and_more_lanes_mix_better(by_class: fb.Dataset) -> None:
    def alike(**options) -> float:
        return fb.mixing_of(by_class, "id", classes="label", batch_size=60, **options).batch_class

    shares = [alike(lanes=1, window=w) for w in (1, 4, 16, 60)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 8
    assert shares[-1] == pytest.approx(1, abs=0.1)
    assert alike(lanes=12, window=1) < 2 < alike(lanes=1, window=1)
    assert alike(shuffle="none") == pytest.approx(10, rel=0.05)
    none = fb.mixing_of(by_class, "id", global_batch_size=60, shuffle="none")
    assert none.rank_correlation == pytest.approx(1)


def test_filters_and_epochs_are_measured(by_class: fb.Dataset) -> None:
    half = by_class.filter("label < 5")
    first = fb.mixing_of(half, "id", classes="label", batch_size=60)
    assert first.rows == ROWS // 2
    second = fb.mixing_of(half, "id", classes="label", batch_size=60, epoch=1)
    assert first.rank_correlation != second.rank_correlation


def test_fills_are_those_of_the_loader(tmp_path: Path) -> None:
    columns = {"id": list(range(8)), "label": [0, 0, 0, None] * 2, "x": [None, 1.0] * 4}
    write(tmp_path / "a.parquet", columns)
    dataset = fb.read_parquet(tmp_path)
    fill = {"label": 3, "x": 0.0}
    m = fb.mixing_of(dataset, "id", classes="label", batch_size=4, distance=2, fill=fill)
    assert m.same_class.shape == (2,)
    with pytest.raises(fb.SchemaError, match="label"):
        fb.mixing_of(dataset, "id", classes="label", batch_size=4)


def test_what_cannot_be_measured_is_refused(by_class: fb.Dataset) -> None:
    with pytest.raises(ValueError, match=r"'label'.*5990 of 6000"):
        fb.mixing_of(by_class, "label", batch_size=60)
    with pytest.raises(ValueError, match="1 rows"):
        fb.mixing_of(by_class.limit(1), "id", batch_size=60)
    with pytest.raises(fb.InvalidInputError, match="nothing"):
        fb.mixing_of(by_class, "nothing", batch_size=60)
    for fixed in ("rank", "world_size", "epoch_end", "format"):
        with pytest.raises(TypeError, match=fixed):
            fb.mixing_of(by_class, "id", batch_size=60, **{fixed: 1})
    with pytest.raises(TypeError):
        fb.mixing_of(by_class, "id", batch_size=60, windows=1)


def test_nulls_are_no_keys(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"name": ["a", None, "b"]})
    with pytest.raises(ValueError, match="no nulls"):
        fb.mixing_of(fb.read_parquet(tmp_path), "name", batch_size=2)
    write(tmp_path / "a.parquet", {"number": [1.0, float("nan"), float("nan")]})
    with pytest.raises(ValueError, match="1 of 3"):
        fb.mixing_of(fb.read_parquet(tmp_path), "number", batch_size=2)


def test_arguments_of_the_wrong_kind_are_named(tmp_path: Path) -> None:
    dataset = fb.read_parquet(
        write(tmp_path / "a.parquet", {"id": [1, 2, 3, 4], "kind": ["a", None, "b", "a"]})
    )
    with pytest.raises(ValueError, match=r"mixing\(classes\): has nulls"):
        fb.mixing_of(dataset, "id", classes="kind", batch_size=2)
    for wrong, word in [({"distance": 2.5}, "distance"), ({"batch_size": "4"}, "batch_size")]:
        with pytest.raises(TypeError, match=word):
            fb.mixing([0, 1, 2, 3], **wrong)
    with pytest.raises(ValueError, match="seed"):
        fb.mixing([0, 1, 2, 3], distance=1, seed=-1)
    with pytest.raises(TypeError, match="key"):
        fb.mixing_of(dataset, None)  # type: ignore[arg-type]
