"""Arguments of Python calls: errors name the call, the argument, and what it takes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support import numbered, write

import forebay as fb

NAN = float("nan")


@pytest.fixture
def dataset(tmp_path: Path) -> fb.Dataset:
    return fb.read_parquet(numbered(tmp_path / "in.parquet", 10))


WRONG: dict[str, tuple[Callable[[fb.Dataset], Any], str]] = {
    "select number": (lambda ds: ds.select(3), "select(columns=3): expected a column name"),
    "select none": (lambda ds: ds.select(None), "select(columns=None): expected a column name"),
    "drop bytes": (lambda ds: ds.drop([b"x"]), "drop(columns=[b'x']): expected a column name"),
    "rename": (lambda ds: ds.rename("x"), "rename(columns='x'): expected a mapping of old names"),
    "filter": (lambda ds: ds.filter(b"x"), "filter(expr=b'x'): expected a SQL expression"),
    "with_column": (
        lambda ds: ds.with_column("x", 3),
        "with_column(expr=3): expected a SQL expression",
    ),
    "op not in a list": (
        lambda ds: ds.map_image("id", fb.Resize(8)),
        "map_image(ops=Resize(size=8, interpolation='bilinear', antialias=True)): "
        "expected a list of operators",
    ),
    "ops none": (lambda ds: ds.map_image("id", None), "map_image(ops=None): expected a list"),
    "op of torch": (lambda ds: ds.map_image("id", [3]), "map_image(ops[0]=3): expected an image"),
    "map_image dtype": (
        lambda ds: ds.map_image("id", dtype=np.uint8),
        "map_image(dtype=<class 'numpy.uint8'>): expected a word",
    ),
    "stack dtype": (
        lambda ds: ds.stack(["id"], "x", dtype=np.float32),
        "stack(dtype=<class 'numpy.float32'>): expected a word such as \"float32\"",
    ),
    "loader": (lambda ds: ds.loader(b"4"), "loader(batch_size=b'4'): expected a number"),
    "set_epoch": (
        lambda ds: ds.loader(4).set_epoch("a"),
        "set_epoch(epoch='a'): expected a whole number",
    ),
    "size text": (lambda _: fb.Resize("12"), "Resize(size='12'): expected a whole number"),
    "size float": (lambda _: fb.CenterCrop([1.9, 2]), "CenterCrop(size=1.9): expected a whole"),
    "size bool": (lambda _: fb.RandomCrop(True), "RandomCrop(size=True): expected a whole number"),
    "padding": (lambda _: fb.RandomCrop(8, 1.5), "RandomCrop(padding=1.5): expected a whole"),
    "fill": (lambda _: fb.RandomCrop(8, fill="0"), "RandomCrop(fill='0'): expected a whole"),
    "scale": (lambda _: fb.RandomResizedCrop(8, "ab"), "RandomResizedCrop(scale='ab'): expected"),
    "p": (lambda _: fb.RandomHorizontalFlip("1"), "RandomHorizontalFlip(p='1'): expected a number"),
    "mean": (lambda _: fb.Normalize(None, 1), "Normalize(mean=None): expected a number"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_type_names_the_argument(dataset: fb.Dataset, name: str) -> None:
    call, text = WRONG[name]
    with pytest.raises(TypeError) as caught:
        call(dataset)
    assert text in str(caught.value)


def test_columns_of_read_parquet(tmp_path: Path) -> None:
    path = numbered(tmp_path / "in.parquet", 10)
    for columns in (3, [b"id"], {"id": 1}):
        with pytest.raises(TypeError, match=r"read_parquet\(columns="):
            fb.read_parquet(path, columns=columns)


def test_a_long_argument_is_shortened(dataset: fb.Dataset) -> None:
    with pytest.raises(TypeError) as caught:
        dataset.filter(b"x" * 100_000)
    assert len(str(caught.value)) < 400


def test_numbers_of_numpy_are_numbers() -> None:
    for make in (np.int64, np.uint8, np.array):
        for op, word in [
            (fb.Resize(make(8)), "resize"),
            (fb.CenterCrop(make(8)), "center_crop"),
            (fb.RandomCrop(make(8), padding=make(8)), "random_crop"),
            (fb.RandomResizedCrop(make(8)), "random_resized_crop"),
        ]:
            assert op._as_plan()[word]["size"] == 8
    assert fb.Resize(np.array([8, 9]))._as_plan()["resize"]["size"] == [8, 9]
    assert fb.RandomCrop(8, padding=np.array([1, 2]))._as_plan()["random_crop"]["padding"] == [1, 2]
    scale = fb.RandomResizedCrop(8, np.array([0.5, 1]))._as_plan()["random_resized_crop"]["scale"]
    assert scale == [0.5, 1.0]


def test_one_number_normalizes_all_channels(tmp_path: Path) -> None:
    path = write(tmp_path / "i.parquet", {"image": [b"x"]})
    dataset = fb.read_parquet(path)
    one = dataset.map_image("image", [fb.Normalize(0.5, np.float32(0.25))], mode="RGB")
    many = dataset.map_image("image", [fb.Normalize([0.5], [0.25])], mode="RGB")
    assert one.plan() == many.plan()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda ds: ds.limit(NAN), "steps[0].limit: expected a whole number"),
        (lambda ds: ds.limit(NAN), "found NaN"),
        (lambda ds: ds.filter("id > 1").limit(float("inf")), "steps[1].limit: expected"),
        (lambda ds: ds.loader(NAN), "loader(batch_size=NaN): expected a whole number"),
        (lambda ds: ds.loader(4, seed=-float("inf")), "found -inf"),
        (lambda ds: ds.loader(4, memory_limit=NAN), "loader(memory_limit=NaN)"),
        (
            lambda ds: ds.map_image("id", [fb.Normalize([NAN], [1.0])]),
            "normalize.mean[0]: expected a finite number",
        ),
        (lambda ds: ds.map_image("id", [fb.RandomHorizontalFlip(NAN)]), "expected a finite number"),
    ],
)
def test_numbers_that_are_none(dataset: fb.Dataset, call: Callable, text: str) -> None:
    with pytest.raises(fb.InvalidInputError) as caught:
        call(dataset)
    assert text in str(caught.value)
    assert "JSON" not in str(caught.value)


def test_words_that_look_like_numbers_stay_words(tmp_path: Path) -> None:
    path = write(tmp_path / "NaN.parquet", {"NaN": [1.0], 'a"Infinity\\': [2.0]})
    dataset = fb.read_parquet(path).rename({"NaN": "Infinity"})
    assert dataset.columns == ["Infinity", 'a"Infinity\\']
    with pytest.raises(fb.InvalidInputError, match=r"steps\[2\].limit"):
        dataset.rename({"Infinity": "NaN"}).limit(NAN)


def test_paths_that_are_not_utf8(tmp_path: Path, dataset: fb.Dataset) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.parquet")
    for call in (
        lambda: fb.read_parquet(path),
        lambda: fb.read_parquet([path]),
        lambda: dataset.write_parquet(path),
    ):
        with pytest.raises(fb.InvalidInputError, match="is not UTF-8") as caught:
            call()
        assert "xff.parquet" in str(caught.value)
        assert "rename it" in caught.value.hint
    with pytest.raises(fb.InvalidInputError, match="a text is not UTF-8"):
        dataset.rename({"id": "\udc80"})


def test_fill_is_checked_when_the_loader_is_made(tmp_path: Path) -> None:
    columns = {
        "small": np.arange(4, dtype=np.int8),
        "real": np.arange(4.0),
        "carrier": ["a", "b", "c", "d"],
        "lists": [[1], [2], [3], [4]],
    }
    dataset = fb.read_parquet(write(tmp_path / "f.parquet", columns))
    for columns, fill, word in [
        (["small"], 1.5, "fill=1.5 does not fit a column of int8"),
        (["small"], 300, "fill=300 does not fit"),
        (["small", "real"], {"small": NAN}, "fill=NaN does not fit a column of int8"),
        (["small", "carrier"], {"carrier": 3}, "fill is for numbers"),
        (["lists"], {"lists": 0.5}, "fill=0.5 does not fit a column of int64"),
    ]:
        with pytest.raises(fb.InvalidInputError) as caught:
            dataset.select(columns).loader(2, fill=fill)
        assert word in str(caught.value)
        assert caught.value.column in columns
        assert "loader(fill=...)" in str(caught.value)
    # One value for all columns need not fit those that have no nulls.
    loader = dataset.select(["small", "real"]).loader(2, fill=NAN, format="numpy")
    assert len(list(loader)) == 2
    assert len(dataset.loader(2, fill=0)) == 2


def test_hints_name_odd_columns_so_that_they_can_be_used(tmp_path: Path) -> None:
    odd = ["it's", 'a"b', "back\\slash", "new\nline", "\u202eodd", "1st", "two words"]
    words = """all and any array as between by case cast current_catalog current_date current_time
        current_timestamp current_user date distinct else end exists extract false from in interval
        is left like limit localtime localtimestamp match not null on or order position returning
        select session_user some struct table then time timestamp trim true user when where"""
    for name in [*odd, *words.split(), "Null"]:
        path = write(tmp_path / "odd.parquet", {name: [1, None]})
        dataset = fb.read_parquet(path)
        with pytest.raises(fb.SchemaError, match="a null cannot go") as caught:
            list(dataset.loader(2))
        fill, call = caught.value.hint.split(", or leave such rows out with ")
        fill, step = fill.removesuffix(" in a with_column step").split(", or with ")
        fill = eval(fill.removeprefix("fill nulls with fill=").removesuffix(" in loader()"))
        assert len(list(dataset.loader(2, fill=fill))) == 1
        assert len(list(dataset.with_column(name, step).loader(2))) == 1
        assert eval(f"dataset.{call}").count() == 1


def test_a_null_within_a_list_can_only_be_filled(tmp_path: Path) -> None:
    for kind in (pa.list_(pa.int64(), 2), pa.list_(pa.int64())):
        table = pa.table({"l": pa.array([[1, None]], kind)})
        dataset = fb.read_parquet(write(tmp_path / "l.parquet", table))
        with pytest.raises(fb.SchemaError, match="a null within") as caught:
            list(dataset.loader(1))
        assert caught.value.hint == 'fill nulls with fill={"l": 0} in loader()'
        assert len(list(dataset.loader(1, fill={"l": 0}))) == 1


def test_a_dictionary_of_numbers_is_cast(tmp_path: Path) -> None:
    column = pa.array([7, 8, 7]).dictionary_encode()
    dataset = fb.read_parquet(write(tmp_path / "d.parquet", pa.table({"d": column})))
    with pytest.raises(fb.SchemaError) as caught:
        dataset.loader(3)
    call = caught.value.hint.removeprefix("convert it with ").split(", leave")[0]
    loader = eval(f"dataset.{call}").loader(3, shuffle="none", format="numpy")
    assert next(iter(loader))["d"].tolist() == [7, 8, 7]


def test_errors_fit_a_screen(tmp_path: Path) -> None:
    huge, long = "x" * 1_000_000, "c" * 50_000
    path = write(tmp_path / "h.parquet", {"s": [huge], long: [None]})
    dataset = fb.read_parquet(path)
    wide = pa.struct([(f"field_{n}", pa.int64()) for n in range(5000)])
    struct = write(tmp_path / "w.parquet", pa.table({"w": pa.array([None], wide)}))
    for call in (
        lambda: list(dataset.with_column("n", "CAST(s AS INT)").select("n").loader(1)),
        lambda: dataset.select([huge]),
        lambda: dataset.filter(f"s = '{huge}' AND other = 3"),
        lambda: dataset.filter(f'"{long}" + s > 3'),
        lambda: dataset.stack([long, "s"], "x"),
        lambda: fb.read_parquet(struct).loader(1),
    ):
        with pytest.raises(fb.ForebayError) as caught:
            call()
        assert len(str(caught.value)) < 2500
