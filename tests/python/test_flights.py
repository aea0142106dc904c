"""The flights of 2013: a real table with nulls, against DuckDB."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
from support import in_order

import forebay as fb

ROWS = 336_776


def test_rows_and_schema(flights: str) -> None:
    dataset = fb.read_parquet(flights)
    assert dataset.count() == ROWS
    assert dataset.columns == pq.read_table(flights).column_names
    assert len(dataset.columns) == 19


def test_late_flights(flights: str) -> None:
    assert fb.read_parquet(flights).filter("dep_delay > 60").count() == 26_581


@pytest.mark.parametrize(
    "where",
    [
        "dep_delay > 60",
        "NOT (dep_delay > 60)",
        "dep_delay <= 60 OR dep_delay > 60",
        "dep_delay IS NULL",
        "dep_delay IS NOT NULL",
        "dep_delay = NULL",
        "dep_delay IS DISTINCT FROM 0",
        "dep_delay > 60 AND arr_delay IS NULL",
        "dep_delay > 60 OR arr_delay IS NULL",
        "dep_delay NOT IN (1, 2)",
        "dep_delay IN (1, NULL)",
        "dep_delay NOT IN (1, NULL)",
        "coalesce(dep_delay, 0) = 0",
        "dep_delay BETWEEN 10 AND 20",
        "month = 7 AND dep_delay > 60",
        "carrier = 'UA' AND dest LIKE 'S%'",
        "tailnum IS NULL AND dep_time IS NULL",
        "CASE WHEN arr_delay > 0 THEN origin = 'JFK' END",
        "dep_delay + arr_delay > 100",
        "distance / air_time * 60 > 500",
        "CAST(time_hour AS TIMESTAMP) >= TIMESTAMP '2013-12-31 00:00:00'",
    ],
)
def test_nulls_behave_as_in_sql(flights: str, where: str) -> None:
    query = f"SELECT count(*) FROM '{flights}/*.parquet' WHERE {where}"
    ((expected,),) = duckdb.sql(query).fetchall()
    dataset = fb.read_parquet(flights).filter(where)
    assert dataset.count() == expected
    assert dataset.loader(4096, epoch_end="partial", format="arrow").rows == expected


def test_with_column_against_duckdb(flights: str, tmp_path: Path) -> None:
    expr = "CASE WHEN dep_delay > 0 THEN dep_delay - arr_delay END"
    dataset = fb.read_parquet(flights).filter("month = 2").with_column("made_up", expr)
    dataset.select(["carrier", "made_up"]).write_parquet(tmp_path / "out")
    ours = duckdb.sql(
        f"SELECT sum(made_up), count(made_up), count(*) FROM '{tmp_path}/out/*.parquet'"
    )
    theirs = duckdb.sql(
        f"SELECT sum({expr}), count({expr}), count(*) FROM '{flights}/*.parquet' WHERE month = 2"
    )
    assert ours.fetchall() == theirs.fetchall()


def test_a_dense_matrix_of_the_whole_table(flights: str) -> None:
    columns = ["dep_time", "dep_delay", "arr_delay", "air_time", "distance", "hour", "minute"]
    dataset = fb.read_parquet(flights, columns=columns).stack(columns, into="x", dtype="float32")
    table = pq.read_table(flights, columns=columns)
    expected = np.stack([table[c].to_numpy().astype(np.float32) for c in columns], axis=1)
    in_file_order = np.concatenate([b["x"] for b in in_order(dataset, 4096, fill=float("nan"))])
    np.testing.assert_array_equal(in_file_order, expected)
    loader = dataset.loader(4096, seed=3, fill=float("nan"), format="numpy", epoch_end="partial")
    shuffled = np.concatenate([b["x"] for b in loader])
    assert not np.array_equal(shuffled, expected, equal_nan=True)

    def ordered(rows: np.ndarray) -> np.ndarray:
        rows = np.nan_to_num(rows, nan=-1e9)
        return rows[np.lexsort(rows.T)]

    np.testing.assert_array_equal(ordered(shuffled), ordered(expected))


def test_s08_filter_and_limit_stop_the_upstream(flights: str, tmp_path: Path) -> None:
    dataset = fb.read_parquet(flights).filter("dep_delay > 60").limit(3)
    size = sum(path.stat().st_size for path in Path(flights).iterdir())
    summary = dataset.write_parquet(tmp_path / "out")
    assert summary["rows_written"] == 3
    assert summary["bytes_read"] < size / 4
    assert summary["rows_read"] < ROWS / 4
    nothing = fb.read_parquet(flights).limit(0).write_parquet(tmp_path / "nothing")
    assert (nothing["rows_read"], nothing["rows_written"]) == (0, 0)
    loader = dataset.loader(3, shuffle="none", format="arrow")
    assert sum(len(batch) for batch in loader) == 3
    assert loader.stats()["bytes_read"] < size / 4
    assert dataset.count() == 3


def test_only_needed_columns_are_read(flights: str) -> None:
    def read(dataset: fb.Dataset) -> int:
        loader = dataset.loader(4096, shuffle="none", format="arrow")
        for _ in loader:
            pass
        return loader.stats()["bytes_read"]

    everything = read(fb.read_parquet(flights))
    one = read(fb.read_parquet(flights).select(["distance"]))
    same = read(fb.read_parquet(flights, columns=["distance"]))
    assert one == same
    assert one < everything / 5
    pruned = read(fb.read_parquet(flights).select(["month", "distance"]).filter("month = 7"))
    assert pruned < one
