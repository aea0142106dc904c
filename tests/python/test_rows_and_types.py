"""Rows, schemas and types: cases T1 to T16, each from Parquet to a batch and back."""

from __future__ import annotations

import datetime
import io
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from support import in_order, numbered, write

import forebay as fb

SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string())])


def _schema(dataset: fb.Dataset) -> pa.Schema:
    return pa.schema(dataset.schema)


def _written(dataset: fb.Dataset, folder: Path) -> pa.Table:
    dataset.write_parquet(folder)
    return pq.read_table(folder)


def test_t01_zero_row_groups_and_zero_rows(tmp_path: Path) -> None:
    pq.ParquetWriter(tmp_path / "no-groups.parquet", SCHEMA).close()
    assert pq.ParquetFile(tmp_path / "no-groups.parquet").num_row_groups == 0
    write(tmp_path / "no-rows.parquet", SCHEMA.empty_table())
    for name in ("no-groups", "no-rows"):
        dataset = fb.read_parquet(tmp_path / f"{name}.parquet")
        assert dataset.count() == 0
        assert _schema(dataset).equals(SCHEMA)
        for shuffle in ("none", "window"):
            for epoch_end in ("drop", "partial", "pad"):
                loader = dataset.loader(4, shuffle=shuffle, epoch_end=epoch_end)
                assert len(loader) == 0
                assert list(loader) == []
        assert dataset.filter("a > 1").count() == 0
        table = _written(dataset, tmp_path / f"{name}-out")
        assert table.num_rows == 0
        assert table.schema.equals(SCHEMA)
        assert fb.read_parquet(tmp_path / f"{name}-out").count() == 0


def test_t01_first_file_is_empty(tmp_path: Path) -> None:
    write(tmp_path / "d" / "0.parquet", SCHEMA.empty_table())
    write(tmp_path / "d" / "1.parquet", pa.table({"a": [1, 2], "s": ["x", "y"]}, schema=SCHEMA))
    dataset = fb.read_parquet(tmp_path / "d")
    assert dataset.count() == 2
    (batch,) = in_order(dataset)
    assert batch["a"].tolist() == [1, 2]
    assert batch["s"] == ["x", "y"]


def test_t01_filter_that_keeps_nothing(tmp_path: Path) -> None:
    dataset = fb.read_parquet(numbered(tmp_path / "x.parquet", 100)).filter("id < 0")
    assert dataset.count() == 0
    assert in_order(dataset) == []
    assert _written(dataset, tmp_path / "out").num_rows == 0


def test_t02_timestamps_keep_type_unit_and_zone(tmp_path: Path) -> None:
    moment = datetime.datetime(2024, 2, 29, 12, 30, 1)
    types = {
        "utc_us": pa.timestamp("us", "UTC"),
        "utc_ns": pa.timestamp("ns", "UTC"),
        "berlin_ms": pa.timestamp("ms", "Europe/Berlin"),
        "plain_ns": pa.timestamp("ns"),
        "plain_ms": pa.timestamp("ms"),
        # Parquet has no seconds; the Arrow schema that pyarrow stores with the file does.
        "utc_s": pa.timestamp("s", "UTC"),
        "berlin_s": pa.timestamp("s", "Europe/Berlin"),
        "offset_s": pa.timestamp("s", "+05:30"),
    }
    fields = [pa.field(name, kind) for name, kind in types.items()]
    table = pa.table({n: pa.array([moment, None], t) for n, t in types.items()}, pa.schema(fields))
    path = write(tmp_path / "t.parquet", table)
    expected = pq.read_table(path)
    dataset = fb.read_parquet(path)
    assert _schema(dataset).types == expected.schema.types
    (batch,) = in_order(dataset, format="arrow")
    assert batch.to_pyarrow().to_pydict() == expected.to_pydict()
    out = _written(dataset, tmp_path / "out")
    assert out.schema.types == expected.schema.types
    assert out.to_pydict() == expected.to_pydict()
    # What an expression says of the hour is that of the zone, and filters find the instant.
    hours = dataset.with_column("ms", "date_part('hour', berlin_ms)")
    hours = hours.with_column("s", "date_part('hour', berlin_s)").filter("berlin_s IS NOT NULL")
    (batch,) = in_order(hours.select(["ms", "s"]))
    assert (batch["ms"].tolist(), batch["s"].tolist()) == ([13], [13])
    assert dataset.filter("berlin_s = berlin_ms AND offset_s = utc_s").count() == 1
    assert dataset.filter("berlin_s > timestamp '2024-03-01T00:00:00Z'").count() == 0


def test_t02_zones_within_lists_and_structs(tmp_path: Path) -> None:
    kind = pa.timestamp("s", "Europe/Berlin")
    moment = datetime.datetime(2024, 2, 29, 12, 30, 1)
    struct = pa.struct([("at", kind), ("n", pa.int64())])
    columns = {
        "list": pa.array([[moment], None], pa.list_(kind)),
        "struct": pa.array([{"at": moment, "n": 1}, None], struct),
    }
    path = write(tmp_path / "t.parquet", columns)
    expected = pq.read_table(path)
    (batch,) = in_order(fb.read_parquet(path), format="arrow")
    assert batch.to_pyarrow().to_pydict() == expected.to_pydict()
    assert _schema(fb.read_parquet(path)).types == expected.schema.types


@pytest.mark.parametrize("value", ["a/b", "with space", "100%", "ü=ä", "plain", "a%2Fb"])
def test_t03_hive_values_round_trip(tmp_path: Path, value: str) -> None:
    write(tmp_path / f"k={quote(value, safe='')}" / "x.parquet", {"a": [1, 2]})
    write(tmp_path / "k=other" / "y.parquet", {"a": [3]})
    dataset = fb.read_parquet(tmp_path)
    rows = {(b["k"][i], int(b["a"][i])) for b in in_order(dataset) for i in range(len(b["a"]))}
    assert rows == {(value, 1), (value, 2), ("other", 3)}
    sql = value.replace("'", "''")
    assert dataset.filter(f"k = '{sql}'").count() == 2


def test_t03_hive_numbers_null_and_pruning(tmp_path: Path) -> None:
    for year in (2023, 2024):
        write(tmp_path / f"year={year}" / "x.parquet", {"a": [year]})
    dataset = fb.read_parquet(tmp_path)
    assert _schema(dataset).field("year").type == pa.int64()
    only = dataset.filter("year = 2024")
    assert [b["a"].tolist() for b in in_order(only)] == [[2024]]
    assert "1 pruned" in only.explain()
    write(tmp_path / "year=__HIVE_DEFAULT_PARTITION__" / "x.parquet", {"a": [0]})
    assert fb.read_parquet(tmp_path).filter("year IS NULL").count() == 1


@pytest.mark.parametrize("kind", ["string", "binary", "dictionary"])
def test_t04_more_than_2_gib_in_one_column(tmp_path: Path, kind: str) -> None:
    # Few different strings: a dictionary page of some kilobytes on disk, beyond the reach of 32-bit
    # offsets in memory.
    rows, size = 34_000, 1 << 16
    column = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), ["x" * size])
    if kind != "dictionary":
        part = column.slice(0, rows // 4).cast(pa.string() if kind == "string" else pa.binary())
        column = pa.chunked_array([part] * 4)
    path = write(tmp_path / "long.parquet", {"s": column}, row_group_size=rows)
    assert pq.ParquetFile(path).num_row_groups == 1
    value = b"x" * size if kind == "binary" else "x" * size
    seen = 0
    for batch in fb.read_parquet(path).loader(1000, shuffle="none", format="numpy"):
        assert all(item == value for item in batch["s"])
        seen += len(batch["s"])
    assert seen == rows


def test_t05_lists(tmp_path: Path) -> None:
    table = {"one": [[2], [3]], "two": [[1, 2], [3, 4]]}
    dataset = fb.read_parquet(write(tmp_path / "l.parquet", table))
    (batch,) = dataset.loader(2, shuffle="none")
    assert torch.equal(batch["one"], torch.tensor([[2], [3]]))
    assert torch.equal(batch["two"], torch.tensor([[1, 2], [3, 4]]))
    (arrow,) = in_order(dataset, format="arrow")
    assert pa.types.is_list(arrow.to_pyarrow().schema.field("one").type)
    assert _written(dataset, tmp_path / "out").to_pydict() == table


def test_t06_images_of_different_sizes(tmp_path: Path) -> None:
    def png(size: int) -> bytes:
        out = io.BytesIO()
        Image.new("RGB", (size, size), (size, 0, 0)).save(out, "PNG")
        return out.getvalue()

    path = write(tmp_path / "i.parquet", {"image": [png(n) for n in (100, 200, 300)]})
    dataset = fb.read_parquet(path).map_image("image", mode="RGB", dtype="uint8")
    (batch,) = in_order(dataset, 3)
    assert [image.shape for image in batch["image"]] == [(3, n, n) for n in (100, 200, 300)]
    # A batch of one has the same type: a list, not a tensor with a first axis of 1.
    singles = in_order(dataset, 1)
    assert [[image.shape for image in b["image"]] for b in singles] == [
        [(3, n, n)] for n in (100, 200, 300)
    ]


def test_t07_strings_bytes_and_none_are_lists(tmp_path: Path) -> None:
    table = pa.table(
        {
            "s": ["x", None, "zö"],
            "large": pa.array(["x", None, "z"], pa.large_string()),
            "y": [b"1", None, b"\0\xff"],
            "fixed": pa.array([b"ab", None, b"ef"], pa.binary(2)),
            "words": pa.array(["p", None, "p"]).dictionary_encode(),
            "nothing": pa.nulls(3),
        }
    )
    path = write(tmp_path / "s.parquet", table)
    for kind in ("torch", "numpy", "dlpack"):
        (batch,) = in_order(fb.read_parquet(path), format=kind)
        assert batch == table.to_pydict()


def test_t08_files_with_different_columns(tmp_path: Path) -> None:
    write(tmp_path / "d" / "a.parquet", {"a": [1, 2]})
    write(tmp_path / "d" / "b.parquet", {"b": ["x"]})
    dataset = fb.read_parquet(tmp_path / "d")
    assert dataset.columns == ["a", "b"]
    (batch,) = in_order(dataset, 3, format="arrow")
    assert batch.to_pyarrow().to_pydict() == {"a": [1, 2, None], "b": [None, None, "x"]}
    assert dataset.filter("a IS NULL").count() == 1
    assert dataset.filter("b = 'x'").count() == 1
    with pytest.raises(fb.SchemaError) as caught:
        in_order(dataset, 3)
    assert caught.value.column == "a"
    assert caught.value.file == str(tmp_path / "d" / "b.parquet")


def test_t08_empty_schema_beside_a_struct(tmp_path: Path) -> None:
    write(tmp_path / "d" / "a.parquet", {})
    write(tmp_path / "d" / "b.parquet", {"s": [{"x": 1}]})
    dataset = fb.read_parquet(tmp_path / "d")
    assert _written(dataset, tmp_path / "out").to_pydict() == {"s": [{"x": 1}]}


def test_t08_types_that_do_not_fit(tmp_path: Path) -> None:
    write(tmp_path / "d" / "a.parquet", {"a": [1]})
    write(tmp_path / "d" / "b.parquet", {"a": ["x"]})
    with pytest.raises(fb.SchemaError, match=r"a\.parquet.*b\.parquet") as caught:
        fb.read_parquet(tmp_path / "d")
    assert isinstance(caught.value, TypeError)
    assert caught.value.column == "a"


def test_t09_nullability_is_unified(tmp_path: Path) -> None:
    for nullable, name in ((False, "a"), (True, "b")):
        schema = pa.schema([pa.field("a", pa.int64(), nullable=nullable)])
        rows = [1, None] if nullable else [1, 2]
        write(tmp_path / "d" / f"{name}.parquet", pa.table({"a": rows}, schema=schema))
    dataset = fb.read_parquet(tmp_path / "d")
    assert _schema(dataset).field("a").nullable
    assert _written(dataset, tmp_path / "out").column("a").to_pylist() == [1, 2, 1, None]


def test_t09_batches_have_the_schema_of_the_dataset(tmp_path: Path) -> None:
    schema = pa.schema(
        [pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string(), nullable=False)]
    )
    path = write(tmp_path / "n.parquet", pa.table({"a": [1], "b": ["x"]}, schema=schema))
    dataset = fb.read_parquet(path)
    assert _schema(dataset).equals(schema)
    (batch,) = in_order(dataset, format="arrow")
    assert pa.record_batch(batch).schema.equals(schema)
    assert _written(dataset, tmp_path / "out").schema.equals(schema)


def test_t10_null_in_an_integer_column(tmp_path: Path) -> None:
    path = write(tmp_path / "n.parquet", {"a": pa.array([*range(10), None, 11])}, row_group_size=4)
    dataset = fb.read_parquet(path)
    with pytest.raises(fb.SchemaError, match="null") as caught:
        in_order(dataset, 4)
    error = caught.value
    assert (error.file, error.row_group, error.row, error.column) == (path, 2, 10, "a")
    assert "fill" in error.hint
    assert "IS NOT NULL" in error.hint
    filled = np.concatenate([b["a"] for b in in_order(dataset, 4, fill=-1)])
    assert filled.dtype == np.int64
    assert filled.tolist() == [*range(10), -1, 11]
    assert sum(len(b["a"]) for b in in_order(dataset.filter("a IS NOT NULL"))) == 11


def test_t10_the_first_batches_before_the_null_come(tmp_path: Path) -> None:
    """An error takes the place of its own batch, however far the prefetch is."""
    path = write(tmp_path / "n.parquet", {"a": pa.array([*range(10), None, 11])}, row_group_size=2)
    epoch = iter(fb.read_parquet(path).loader(2, shuffle="none", prefetch=16, num_threads=2))
    assert [next(epoch)["a"].tolist() for _ in range(5)] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    with pytest.raises(fb.SchemaError):
        next(epoch)
    assert list(epoch) == []


def test_t11_ragged_lists(tmp_path: Path) -> None:
    path = write(tmp_path / "r.parquet", {"r": [[1], [1, 2], [], [3, 4, 5]]})
    dataset = fb.read_parquet(path)
    with pytest.raises(fb.SchemaError, match=r"\[1\] and \[2\]") as caught:
        in_order(dataset, 4)
    error = caught.value
    assert (error.file, error.row, error.column) == (path, 1, "r")
    for way in ("pad", "ragged", "bucket"):
        assert way in error.hint

    (padded,) = dataset.loader(4, shuffle="none", lists={"r": "pad"}, fill=-1)
    assert padded["r"].tolist() == [[1, -1, -1], [1, 2, -1], [-1, -1, -1], [3, 4, 5]]
    (ragged,) = dataset.loader(4, shuffle="none", lists="ragged")
    assert isinstance(ragged["r"], fb.Ragged)
    assert ragged["r"].offsets.tolist() == [0, 1, 3, 3, 6]
    assert ragged["r"].offsets.dtype == torch.int64
    assert ragged["r"].values.tolist() == [1, 1, 2, 3, 4, 5]
    # The bucket that the hint names works.
    (bucket,) = in_order(dataset.filter("cardinality(r) = 1"))
    assert bucket["r"].tolist() == [[1]]


def test_t11_uniform_in_every_batch_but_not_over_them(tmp_path: Path) -> None:
    path = write(tmp_path / "r.parquet", {"r": [[1], [2], [1, 2], [3, 4]]})
    for _ in range(10):
        # Whichever thread is first, the first sample of the epoch decides.
        with pytest.raises(fb.SchemaError, match=r"\[1\] and \[2\]") as caught:
            in_order(fb.read_parquet(path), 2, num_threads=2)
        assert caught.value.row == 2


def test_t12_gray_and_colour_in_one_column(tmp_path: Path) -> None:
    pictures = []
    for mode in ("RGB", "RGB", "L"):
        out = io.BytesIO()
        Image.new(mode, (8, 8), 77 if mode == "L" else (77, 1, 2)).save(out, "PNG")
        pictures.append(out.getvalue())
    path = write(tmp_path / "i.parquet", {"image": pictures})
    dataset = fb.read_parquet(path)
    (batch,) = in_order(dataset.map_image("image", [fb.Resize([8, 8])], mode="RGB", dtype="uint8"))
    assert batch["image"].shape == (3, 3, 8, 8)
    assert np.unique(batch["image"][2]).tolist() == [77]
    with pytest.raises(fb.ForebayError) as caught:
        in_order(dataset.map_image("image", [fb.Resize([8, 8])]), 1, num_threads=2)
    error = caught.value
    assert (error.file, error.row, error.column) == (path, 2, "image")
    assert "mode" in str(error)


def test_t13_a_path_listed_twice_is_read_twice(tmp_path: Path) -> None:
    for part in range(4):
        numbered(tmp_path / "d" / f"{part}.parquet", 250)
    once = fb.read_parquet(tmp_path / "d")
    folder = str(tmp_path / "d")
    for _ in range(5):
        twice = fb.read_parquet([folder, folder])
        assert once.count() == 1000
        assert twice.count() == 2000
        for shuffle in ("none", "window"):
            loader = twice.loader(64, shuffle=shuffle, epoch_end="partial", format="numpy")
            rows = np.concatenate([batch["id"] for batch in loader])
            assert np.bincount(rows, minlength=250).tolist() == [8] * 250
    file = str(tmp_path / "d" / "0.parquet")
    assert fb.read_parquet([file, file, file]).count() == 750
    assert _written(fb.read_parquet([file, file]), tmp_path / "out").num_rows == 500


def test_t16_draws_differ_by_sample_and_repeat_on_a_rerun(tmp_path: Path) -> None:
    out = io.BytesIO()
    x, y = np.meshgrid(np.arange(200), np.arange(160))
    Image.fromarray(np.stack([x, y, x ^ y], axis=2).astype(np.uint8)).save(out, "PNG")
    path = write(tmp_path / "i.parquet", {"image": [out.getvalue()] * 64}, row_group_size=16)
    ops = [fb.RandomResizedCrop(16), fb.RandomHorizontalFlip()]
    dataset = fb.read_parquet(path).map_image("image", ops, mode="RGB", dtype="uint8")

    def epoch(threads: int, seed: int = 1) -> list[bytes]:
        loader = dataset.loader(8, shuffle="none", seed=seed, format="numpy", num_threads=threads)
        return [image.tobytes() for batch in loader for image in batch["image"]]

    first = epoch(4)
    assert len(set(first)) == 64
    assert epoch(4) == first
    assert epoch(1) == first
    assert epoch(4, seed=2) != first
