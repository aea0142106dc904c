"""Steps one after the other: names, order and values, against DuckDB."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import in_order, write

import forebay as fb


@pytest.fixture
def table(tmp_path: Path) -> str:
    n = 1000
    rng = np.random.default_rng(1)
    columns = {
        "id": np.arange(n),
        "x": pa.array(rng.normal(size=n), mask=rng.random(n) < 0.1),
        "Y z": pa.array(rng.integers(0, 100, n), mask=rng.random(n) < 0.1),
        "name": [f"n{i % 7}" for i in range(n)],
        "flag": rng.random(n) < 0.5,
    }
    return write(tmp_path / "t.parquet", columns, row_group_size=64)


def _check(dataset: fb.Dataset, sql: str, tmp_path: Path) -> None:
    """The dataset is what the query gives, in a loader and in written files."""
    expected = duckdb.sql(sql).arrow()
    expected = expected.read_all() if hasattr(expected, "read_all") else expected
    assert dataset.columns == expected.column_names
    batches = [pa.record_batch(b) for b in in_order(dataset, 100, format="arrow")]
    assert [row for b in batches for row in b.to_pylist()] == expected.to_pylist()
    assert dataset.count() == expected.num_rows
    dataset.write_parquet(tmp_path / "out")
    assert pq.read_table(tmp_path / "out").to_pylist() == expected.to_pylist()


def test_select_keeps_the_order_given(table: str, tmp_path: Path) -> None:
    _check(
        fb.read_parquet(table).select(["name", "id"]), f"SELECT name, id FROM '{table}'", tmp_path
    )


def test_columns_of_the_source(table: str, tmp_path: Path) -> None:
    dataset = fb.read_parquet(table, columns=["x", "id"])
    _check(dataset, f"SELECT x, id FROM '{table}'", tmp_path)


def test_drop_and_rename(table: str, tmp_path: Path) -> None:
    dataset = fb.read_parquet(table).drop(["flag", "x"]).rename({"Y z": "y", "id": "Y z"})
    _check(dataset, f'SELECT id AS "Y z", "Y z" AS y, name FROM \'{table}\'', tmp_path)


def test_rename_swaps(table: str, tmp_path: Path) -> None:
    dataset = fb.read_parquet(table).select(["id", "name"]).rename({"id": "name", "name": "id"})
    _check(dataset, f"SELECT id AS name, name AS id FROM '{table}'", tmp_path)


def test_with_column_adds_and_replaces_in_place(table: str, tmp_path: Path) -> None:
    dataset = fb.read_parquet(table).drop("flag")
    dataset = dataset.with_column("sum", 'x + "Y z"').with_column("x", "x * 2")
    sql = f'SELECT id, x * 2 AS x, "Y z", name, x + "Y z" AS sum FROM \'{table}\''
    _check(dataset, sql, tmp_path)


def test_each_step_sees_the_ones_before(table: str, tmp_path: Path) -> None:
    dataset = fb.read_parquet(table)
    dataset = dataset.with_column("a", "id % 10").filter("a > 4").rename({"a": "b"})
    dataset = dataset.filter("b < 8").with_column("c", "b * id").select(["c", "b", "id"])
    sql = (
        f"SELECT (id % 10) * id AS c, id % 10 AS b, id FROM '{table}'"
        " WHERE id % 10 > 4 AND id % 10 < 8"
    )
    _check(dataset, sql, tmp_path)


def test_limits_and_filters_do_not_change_places(table: str, tmp_path: Path) -> None:
    dataset = fb.read_parquet(table).limit(500).filter("flag").limit(100).filter("id > 20")
    sql = (
        f"SELECT * FROM (SELECT * FROM (SELECT * FROM '{table}' WHERE id < 500) WHERE flag"
        " ORDER BY id LIMIT 100) WHERE id > 20"
    )
    _check(dataset, sql, tmp_path)


def test_a_filter_on_a_column_that_is_dropped_later(table: str, tmp_path: Path) -> None:
    dataset = fb.read_parquet(table).filter("name = 'n3' AND NOT flag").select("id")
    _check(dataset, f"SELECT id FROM '{table}' WHERE name = 'n3' AND NOT flag", tmp_path)


@pytest.mark.parametrize(
    "expr",
    [
        "1.0 / (id + 1)",
        "coalesce(x, 0) + 1",
        "CASE WHEN flag THEN x ELSE -x END",
        "CAST(id AS DOUBLE) / 3",
        "upper(name) || '-' || CAST(id AS VARCHAR)",
        "name LIKE '%3'",
        "abs(x) BETWEEN 0.5 AND 1",
        '"Y z" IS NULL OR "Y z" > 50',
        "length(name) + 1",
        "nullif(id % 3, 0)",
        "CASE name WHEN 'n1' THEN 1 WHEN 'n2' THEN 2 END",
        "substr(name, 2, 1)",
        "round(x * 100)",
    ],
)
def test_expressions(table: str, tmp_path: Path, expr: str) -> None:
    dataset = fb.read_parquet(table).with_column("v", expr).select(["id", "v"])
    _check(dataset, f"SELECT id, {expr} AS v FROM '{table}'", tmp_path)


def test_a_step_makes_a_new_dataset(table: str) -> None:
    dataset = fb.read_parquet(table)
    small = dataset.filter("id < 3")
    assert (dataset.count(), small.count()) == (1000, 3)
    assert small.with_column("a", "1").columns != small.columns


def test_the_plan_is_data(table: str) -> None:
    dataset = fb.read_parquet(table).filter("id < 3").with_column("a", "id + 1").limit(2)
    plan = dataset.plan()
    assert [next(iter(step)) for step in plan["steps"]] == ["filter", "with_column", "limit"]
    assert "version" in plan
    text = dataset.explain()
    for word in ("id < 3", "id + 1", "row groups", "bytes"):
        assert word in text


def test_numbers_of_numpy_and_torch_are_numbers(table: str) -> None:
    import torch

    dataset = fb.read_parquet(table).select(["id"]).limit(np.int64(30))
    loader = dataset.loader(np.int32(10), seed=np.uint64(3), prefetch=torch.tensor(2), fill=0)
    assert len(loader) == 3
    assert dataset.count() == 30
    with pytest.raises(TypeError, match="object"):
        dataset.loader(object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="ndarray"):
        dataset.limit(np.arange(3))  # type: ignore[arg-type]


def test_datasets_can_be_pickled_and_copied(table: str) -> None:
    dataset = fb.read_parquet(table).filter("id < 30").with_column("a", "id + 1")
    for again in (pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset)):
        assert again.plan() == dataset.plan()
        assert again.count() == 30


@pytest.mark.parametrize("shuffle", ["none", "window"])
def test_a_filtered_loader_reads_the_pages_of_its_rows(tmp_path: Path, shuffle: str) -> None:
    rows = 20_000
    payload = np.random.default_rng(3).integers(0, 256, (rows, 512), np.uint8)
    columns = {"id": np.arange(rows), "payload": [row.tobytes() for row in payload]}
    options = {"write_page_index": True, "data_page_size": 16_384, "write_batch_size": 32}
    path = write(tmp_path / "p.parquet", columns, use_dictionary=False, **options)
    dataset = fb.read_parquet(path).filter("id % 5000 = 17")
    loader = dataset.loader(4, shuffle=shuffle, format="numpy", seed=2)
    (batch,) = loader
    assert sorted(batch["id"].tolist()) == [17, 5_017, 10_017, 15_017]
    for row, value in zip(batch["id"], batch["payload"], strict=True):
        assert value == payload[row].tobytes()
    assert loader.stats()["bytes_read"] < Path(path).stat().st_size / 10
