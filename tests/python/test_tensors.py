"""Batches as tensors: dtypes, shapes, shared memory, fills, and errors that say what to choose."""

from __future__ import annotations

import datetime
import decimal
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from support import in_order, numbered, until, write

import forebay as fb

NUMBERS = {
    "bool": pa.array([True, False, True]),
    "int8": pa.array([-1, 2, 3], pa.int8()),
    "int16": pa.array([-1, 2, 3], pa.int16()),
    "int32": pa.array([-1, 2, 3], pa.int32()),
    "int64": pa.array([-(2**62), 2, 3], pa.int64()),
    "uint8": pa.array([1, 2, 255], pa.uint8()),
    "uint16": pa.array([1, 2, 65535], pa.uint16()),
    "uint32": pa.array([1, 2, 2**32 - 1], pa.uint32()),
    "uint64": pa.array([1, 2, 2**64 - 1], pa.uint64()),
    "float16": pa.array(np.array([0.5, 1, np.nan], np.float16)),
    "float32": pa.array([0.5, 1, float("nan")], pa.float32()),
    "float64": pa.array([0.5, 1, float("inf")], pa.float64()),
}


@pytest.fixture
def numbers(tmp_path: Path) -> fb.Dataset:
    return fb.read_parquet(write(tmp_path / "n.parquet", NUMBERS))


def test_numbers_keep_their_types_as_numpy(numbers: fb.Dataset) -> None:
    (batch,) = in_order(numbers)
    for name, column in NUMBERS.items():
        assert batch[name].dtype == np.dtype(name)
        np.testing.assert_array_equal(batch[name], column.to_numpy(zero_copy_only=False))


def test_numbers_keep_their_types_as_torch(numbers: fb.Dataset) -> None:
    (batch,) = in_order(numbers, format="torch")
    for name, column in NUMBERS.items():
        assert batch[name].dtype == getattr(torch, name)
        np.testing.assert_array_equal(batch[name].numpy(), column.to_numpy(zero_copy_only=False))


def test_numbers_as_dlpack(numbers: fb.Dataset) -> None:
    (batch,) = in_order(numbers, format="dlpack")
    for name, column in NUMBERS.items():
        tensor = batch[name]
        assert isinstance(tensor, fb.Tensor)
        assert (tensor.shape, tensor.dtype) == ((3,), name)
        assert tensor.nbytes == 3 * np.dtype(name).itemsize
        assert tensor.__dlpack_device__() == (1, 0)
        expected = column.to_numpy(zero_copy_only=False)
        np.testing.assert_array_equal(np.from_dlpack(tensor), expected)
        np.testing.assert_array_equal(torch.from_dlpack(tensor).numpy(), expected)
        np.testing.assert_array_equal(np.asarray(tensor), expected)
        with pytest.raises(BufferError):
            tensor.__dlpack__(dl_device=(2, 0))


def test_numbers_as_arrow(numbers: fb.Dataset) -> None:
    (batch,) = in_order(numbers, format="arrow")
    assert len(batch) == batch.num_rows == 3
    assert batch.column_names == list(NUMBERS)
    record = pa.record_batch(batch)
    assert record.schema.types == [column.type for column in NUMBERS.values()]
    for name, column in NUMBERS.items():
        assert pa.array(batch[name]).equals(column) or name.startswith("float")
    with pytest.raises(KeyError):
        batch["nope"]


def test_fixed_size_lists_are_dense(tmp_path: Path) -> None:
    rows = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    path = write(tmp_path / "f.parquet", {"f": pa.array(rows, pa.list_(pa.float32(), 3))})
    (batch,) = in_order(fb.read_parquet(path), format="torch")
    assert batch["f"].dtype == torch.float32
    assert batch["f"].tolist() == rows
    path = write(
        tmp_path / "n.parquet", {"f": pa.array([rows[0], None], pa.list_(pa.float32(), 3))}
    )
    with pytest.raises(fb.SchemaError) as caught:
        in_order(fb.read_parquet(path))
    assert (caught.value.row, caught.value.column) == (1, "f")
    holes = pa.array([[1, None], [3, 4]], pa.list_(pa.int32(), 2))
    dataset = fb.read_parquet(write(tmp_path / "h.parquet", {"f": holes}))
    with pytest.raises(fb.SchemaError) as caught:
        in_order(dataset)
    assert (caught.value.row, caught.value.column) == (0, "f")
    assert in_order(dataset, fill=-1)[0]["f"].tolist() == [[1, -1], [3, 4]]


def test_lists_of_every_element_type(tmp_path: Path) -> None:
    table = {
        name: pa.array([column.to_pylist(), column.to_pylist()], pa.list_(column.type))
        for name, column in NUMBERS.items()
    }
    table["large"] = pa.array([[1, 2, 3], [4, 5, 6]], pa.large_list(pa.int32()))
    (batch,) = in_order(fb.read_parquet(write(tmp_path / "l.parquet", table)))
    for name, column in NUMBERS.items():
        expected = column.to_numpy(zero_copy_only=False)
        np.testing.assert_array_equal(batch[name], np.stack([expected] * 2))
    assert batch["large"].tolist() == [[1, 2, 3], [4, 5, 6]]


def test_null_lists_and_nulls_in_lists(tmp_path: Path) -> None:
    path = write(tmp_path / "l.parquet", {"l": [[1, 2], None, [3, 4]]})
    with pytest.raises(fb.SchemaError) as caught:
        in_order(fb.read_parquet(path), lists="pad")
    assert (caught.value.row, caught.value.column) == (1, "l")
    path = write(tmp_path / "e.parquet", {"l": [[1, 2], [None, 4]]})
    with pytest.raises(fb.SchemaError) as caught:
        in_order(fb.read_parquet(path))
    assert (caught.value.row, caught.value.column) == (1, "l")
    assert in_order(fb.read_parquet(path), fill={"l": 0})[0]["l"].tolist() == [[1, 2], [0, 4]]


# --- memory ---------------------------------------------------------------------------------------


def _address(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.data_ptr()
    return value.__array_interface__["data"][0]


@pytest.mark.parametrize("kind", ["torch", "numpy", "dlpack"])
def test_dense_outputs_are_aligned_and_share_one_slab(tmp_path: Path, kind: str) -> None:
    dataset = fb.read_parquet(numbered(tmp_path / "n.parquet", 1000))
    batch = next(iter(dataset.loader(100, shuffle="none", format=kind)))
    addresses = [_address(batch[name]) for name in ("id", "half")]
    assert all(address % 64 == 0 for address in addresses)
    # One block of memory for the batch: the columns are neighbours.
    assert abs(addresses[0] - addresses[1]) < 4096
    del batch
    gc.collect()


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_outputs_are_writable(tmp_path: Path, kind: str) -> None:
    dataset = fb.read_parquet(numbered(tmp_path / "n.parquet", 1000))
    for step, batch in enumerate(dataset.loader(100, shuffle="none", format=kind)):
        assert int(batch["id"][0]) == step * 100, "a slab that came back has new contents"
        batch["id"][:] = -1
        assert int(batch["id"].sum()) == -100


def test_views_of_one_tensor_share_its_memory(tmp_path: Path) -> None:
    dataset = fb.read_parquet(numbered(tmp_path / "n.parquet", 100))
    tensor = next(iter(dataset.loader(100, shuffle="none", format="dlpack")))["id"]
    left, right = torch.from_dlpack(tensor), np.asarray(tensor)
    left[3] = 77
    assert right[3] == 77
    assert _address(left) == _address(right) == _address(tensor)


@pytest.mark.parametrize("kind", ["torch", "numpy", "dlpack", "arrow"])
def test_tensors_outlive_the_loader(tmp_path: Path, kind: str) -> None:
    dataset = fb.read_parquet(numbered(tmp_path / "n.parquet", 1000))
    epoch = iter(dataset.loader(100, shuffle="none", format=kind))
    batch = next(epoch)
    kept = batch["id"]
    del epoch, batch, dataset
    gc.collect()
    values = pa.array(kept).to_pylist() if kind == "arrow" else np.asarray(kept).tolist()
    assert values == list(range(100))
    assert kind == "arrow" or fb.memory().used > 0
    del kept
    until(lambda: fb.memory().used == 0, "the slab is given back with the last tensor")


def test_gauges_count_what_the_trainer_holds(tmp_path: Path) -> None:
    dataset = fb.read_parquet(numbered(tmp_path / "n.parquet", 1000))
    loader = dataset.loader(100, shuffle="none", format="numpy")
    held = [batch["id"] for batch in loader]
    stats = loader.stats()
    assert stats["held_by_consumer"] >= 10 * 100 * 8
    assert (stats["rows"], stats["batches"]) == (1000, 10)
    del held
    gc.collect()
    until(lambda: loader.stats()["held_by_consumer"] == 0, "nothing is held")
    assert loader.stats()["memory_used"] == 0


def test_a_list_of_all_batches_is_fine_while_it_fits(tmp_path: Path) -> None:
    rows = 200_000
    dataset = fb.read_parquet(numbered(tmp_path / "n.parquet", rows, row_group=5000))
    for shuffle in ("none", "window"):
        loader = dataset.loader(1000, shuffle=shuffle, format="numpy")
        batches = list(loader)
        together = np.concatenate([batch["id"] for batch in batches])
        assert sorted(together.tolist()) == list(range(rows))


def test_a_list_of_all_batches_beyond_the_limit_is_an_error(tmp_path: Path) -> None:
    dataset = fb.read_parquet(numbered(tmp_path / "n.parquet", 400_000, row_group=5000))
    with pytest.raises(fb.ResourceError, match="still holds") as caught:
        list(dataset.loader(10_000, shuffle="none", memory_limit="2MiB"))
    assert isinstance(caught.value, MemoryError)
    assert "memory_limit" in caught.value.hint
    assert "batches" in str(caught.value)
    del caught
    gc.collect()
    # Without a list the same loader goes through.
    rows = 0
    for batch in dataset.loader(10_000, shuffle="none", memory_limit="2MiB"):
        rows += len(batch["id"])
    assert rows == 400_000


def test_a_shuffle_that_does_not_fit_names_what_would(tmp_path: Path) -> None:
    dataset = fb.read_parquet(numbered(tmp_path / "n.parquet", 400_000, row_group=20_000))
    with pytest.raises(fb.ResourceError) as caught:
        dataset.loader(64, memory_limit="1MiB")
    assert caught.value.place == "loader(memory_limit=...)"
    assert "lanes" in caught.value.hint
    assert "memory_limit" in caught.value.hint


# --- fills ----------------------------------------------------------------------------------------

HOLES = {
    "i": pa.array([1, None, 3], pa.int32()),
    "f": pa.array([0.5, None, 2.0], pa.float32()),
    "b": pa.array([True, None, False]),
    "s": pa.array(["x", None, "z"]),
}


def test_fill_for_all_columns(tmp_path: Path) -> None:
    dataset = fb.read_parquet(write(tmp_path / "h.parquet", HOLES))
    (batch,) = in_order(dataset, fill=0)
    assert batch["i"].tolist() == [1, 0, 3]
    assert batch["f"].tolist() == [0.5, 0.0, 2.0]
    assert batch["b"].tolist() == [True, False, False]
    assert batch["s"] == ["x", None, "z"]
    assert batch["i"].dtype == np.int32


def test_fill_by_column(tmp_path: Path) -> None:
    dataset = fb.read_parquet(write(tmp_path / "h.parquet", HOLES))
    (batch,) = in_order(dataset, fill={"i": -7, "f": float("nan"), "b": True})
    assert batch["i"].tolist() == [1, -7, 3]
    np.testing.assert_array_equal(batch["f"], np.array([0.5, np.nan, 2.0], np.float32))
    assert batch["b"].tolist() == [True, True, False]
    (batch,) = in_order(dataset.select(["f"]), fill=np.float32("inf"))
    assert batch["f"].tolist() == [0.5, float("inf"), 2.0]
    with pytest.raises(fb.SchemaError) as caught:
        in_order(dataset, fill={"i": -7})
    assert caught.value.column in ("f", "b")


@pytest.mark.parametrize(
    ("column", "fill"), [("i", float("nan")), ("i", 0.5), ("i", 2**31), ("b", 2), ("i", "inf")]
)
def test_fill_that_a_column_cannot_hold(tmp_path: Path, column: str, fill: Any) -> None:
    dataset = fb.read_parquet(write(tmp_path / "h.parquet", HOLES)).select([column])
    with pytest.raises(fb.InvalidInputError, match="fill") as caught:
        in_order(dataset, fill={column: float(fill)})
    assert caught.value.column == column


@pytest.mark.parametrize("argument", ["fill", "lists"])
def test_fill_and_lists_name_real_columns(numbers: fb.Dataset, argument: str) -> None:
    value = {"int23": 0 if argument == "fill" else "pad"}
    with pytest.raises(fb.InvalidInputError, match="int23") as caught:
        numbers.loader(1, **{argument: value})
    assert "int32" in caught.value.hint


# --- stacks ---------------------------------------------------------------------------------------


def test_stack_mixes_types(numbers: fb.Dataset) -> None:
    columns = ["bool", "int8", "uint16", "float32", "float64"]
    dataset = numbers.stack(columns, into="x", dtype="float32")
    assert "x" in dataset.columns
    assert not set(columns) & set(dataset.columns)
    (batch,) = in_order(dataset.select(["x"]))
    expected = np.stack([np.asarray(NUMBERS[c].to_numpy(False), np.float32) for c in columns], 1)
    assert batch["x"].dtype == np.float32
    np.testing.assert_array_equal(batch["x"], expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int64", "uint8"])
def test_stack_dtypes(tmp_path: Path, dtype: str) -> None:
    path = write(tmp_path / "s.parquet", {"a": [1, 2], "b": [3.0, 4.0]})
    dataset = fb.read_parquet(path).stack(["b", "a"], into="x", dtype=dtype)
    (batch,) = in_order(dataset, format="torch")
    assert batch["x"].dtype == getattr(torch, dtype)
    assert batch["x"].tolist() == [[3, 1], [4, 2]]


def test_stack_nulls(tmp_path: Path) -> None:
    path = write(tmp_path / "h.parquet", HOLES)
    dataset = fb.read_parquet(path).stack(["i", "f"], into="x").select(["x"])
    with pytest.raises(fb.SchemaError) as caught:
        in_order(dataset)
    assert (caught.value.row, caught.value.column) == (1, "i")
    (batch,) = in_order(dataset, fill={"i": -1, "f": float("nan")})
    np.testing.assert_array_equal(
        batch["x"], np.array([[1, 0.5], [-1, np.nan], [3, 2]], np.float32)
    )
    (batch,) = in_order(dataset, fill={"x": 9})
    assert batch["x"].tolist() == [[1, 0.5], [9, 9], [3, 2]]


def test_integer_stacks_are_exact(tmp_path: Path) -> None:
    large = [2**53 + 1, 2**63 - 1, None]
    path = write(tmp_path / "s.parquet", {"a": large, "b": [-(2**63), 1, 2]})
    dataset = fb.read_parquet(path).stack(["a", "b"], into="x", dtype="int64")
    (batch,) = in_order(dataset, fill=2**62 + 1)
    assert batch["x"].tolist() == [[2**53 + 1, -(2**63)], [2**63 - 1, 1], [2**62 + 1, 2]]


@pytest.mark.parametrize("values", [[1, 300], [1.0, 2.5], [1.0, float("nan")], [1.0, 1e40]])
def test_a_stack_of_integers_refuses_what_does_not_fit(tmp_path: Path, values: list[float]) -> None:
    path = write(tmp_path / "s.parquet", {"a": values})
    dataset = fb.read_parquet(path).stack(["a"], into="x", dtype="int8")
    with pytest.raises(fb.SchemaError, match="does not fit a stack of int8") as caught:
        in_order(dataset)
    assert (caught.value.row, caught.value.column) == (1, "a")
    assert "stack(dtype=...)" in caught.value.hint


def test_bfloat16_has_no_numpy_form(tmp_path: Path) -> None:
    dataset = fb.read_parquet(write(tmp_path / "s.parquet", {"a": [1]}))
    with pytest.raises((TypeError, ValueError), match="bfloat16"):
        in_order(dataset.stack(["a"], into="x", dtype="bfloat16"))


# --- types without a tensor form ------------------------------------------------------------------

NO_TENSOR = {
    "decimal": (pa.array([decimal.Decimal("1.50")]), "CAST(decimal AS DOUBLE)", 1.5),
    "timestamp": (
        pa.array([datetime.datetime(1970, 1, 2)], pa.timestamp("ms")),
        "CAST(timestamp AS BIGINT)",
        86_400_000,
    ),
    "date": (pa.array([datetime.date(1970, 1, 2)]), "CAST(date AS BIGINT)", 1),
    "time": (pa.array([datetime.time(0, 0, 1)]), "CAST(time AS BIGINT)", 1_000_000),
    "duration": (pa.array([5], pa.duration("s")), "CAST(duration AS BIGINT)", 5),
    "struct": (pa.array([{"x": 1}]), None, None),
    "nested": (pa.array([[[1]]]), None, None),
    "texts": (pa.array([["x"]]), None, None),
    "map": (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), None, None),
}


@pytest.mark.parametrize("name", NO_TENSOR)
def test_types_without_a_tensor_form_say_what_to_do(tmp_path: Path, name: str) -> None:
    column, cast, value = NO_TENSOR[name]
    dataset = fb.read_parquet(write(tmp_path / "t.parquet", {name: column, "a": [1]}))
    with pytest.raises(fb.SchemaError, match="no tensor form") as caught:
        dataset.loader(1)
    error = caught.value
    assert error.column == name
    # Each way out that the hint names works.
    assert f'drop(["{name}"])' in error.hint
    assert in_order(dataset.drop([name]))[0]["a"].tolist() == [1]
    assert 'format="arrow"' in error.hint
    (batch,) = in_order(dataset, format="arrow")
    assert pa.record_batch(batch).column(name).equals(pa.array(column))
    if cast is not None:
        assert f"with_column(\"{name}\", '{cast}')" in error.hint
        assert in_order(dataset.with_column(name, cast))[0][name].tolist() == [value]


def test_hints_quote_names_that_sql_would_misread(tmp_path: Path) -> None:
    column = pa.array([decimal.Decimal("1.5")])
    dataset = fb.read_parquet(write(tmp_path / "t.parquet", {"my col": column}))
    with pytest.raises(fb.SchemaError) as caught:
        dataset.loader(1)
    cast = 'CAST("my col" AS DOUBLE)'
    assert cast in caught.value.hint
    assert in_order(dataset.with_column("x", cast).select(["x"]))[0]["x"].tolist() == [1.5]
    dataset = fb.read_parquet(write(tmp_path / "n.parquet", {"my col": pa.array([None, 1])}))
    with pytest.raises(fb.SchemaError) as caught:
        in_order(dataset)
    where = '"my col" IS NOT NULL'
    assert where in caught.value.hint
    assert dataset.filter(where).count() == 1


def test_fill_keeps_every_bit_of_a_whole_number(tmp_path: Path) -> None:
    path = write(tmp_path / "b.parquet", {"a": pa.array([1, None])})
    for fill in (2**53 + 1, 2**63 - 1, -(2**63)):
        (batch,) = in_order(fb.read_parquet(path), fill=fill)
        assert batch["a"].tolist() == [1, fill]


def test_batches_of_unknown_size_are_counted_as_batches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where bytes are known only when a batch is made, one that is held is still one."""
    lists = [np.arange(4000 + i % 7) for i in range(2000)]
    path = write(tmp_path / "l.parquet", {"l": lists, "id": range(2000)}, row_group_size=50)
    dataset = fb.read_parquet(path)
    for form in ("ragged", "pad"):
        options = {"shuffle": "none", "lists": form, "memory_limit": "4MiB", "format": "numpy"}
        # A batch is more than half of the limit.
        assert sum(len(b["id"]) for b in dataset.loader(80, **options)) == 2000
        with pytest.raises(fb.ResourceError, match=r"still holds \d batches") as caught:
            list(dataset.loader(80, **options))
        del caught
        gc.collect()
    assert caplog.records == []
