"""Rows multiplied: what comes out, in which order, on any ranks, after any restart."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from support import digest, forebay, write

import forebay as fb

ROWS = 101
L = 4
B = 8
STEPS = 9


def _tokens(row: int) -> list[int] | None:
    """The list of a row: 0 to 4 elements, some lists null."""
    if row % 13 == 5:
        return None
    return [row * 10 + i for i in range((row * 7 + row // 3) % 5)]


LISTS = [_tokens(row) for row in range(ROWS)]
ITEMS = [(row, token) for row, tokens in enumerate(LISTS) for token in tokens or []]


@pytest.fixture
def rows(tmp_path: Path) -> fb.Dataset:
    """101 rows in two files with row groups of 10."""
    for name, part in [("a", range(60)), ("b", range(60, ROWS))]:
        columns = {
            "id": list(part),
            "tokens": pa.array([LISTS[row] for row in part], pa.list_(pa.int64())),
            "name": [f"row {row}" for row in part],
        }
        write(tmp_path / "data" / f"{name}.parquet", columns, row_group_size=10)
    return fb.read_parquet(tmp_path / "data")


def _loader(dataset: fb.Dataset, **options: Any) -> fb.Loader:
    defaults = {"global_batch_size": B, "lanes": L, "window": 2, "steps": STEPS, "seed": 7}
    return dataset.loader(**{**defaults, "format": "numpy", **options})


def _table(dataset: fb.Dataset, folder: Path) -> pa.Table:
    dataset.write_parquet(folder)
    return pq.ParquetDataset(sorted(folder.glob("*.parquet"))).read()


def _lane_orders(rows: fb.Dataset, pass_: int) -> list[list[int]]:
    """The source rows of every lane in a pass: the order of an epoch of the same rows."""
    plain = rows.select(["id"]).loader(
        global_batch_size=L,
        lanes=L,
        window=2,
        seed=7,
        epoch_end="partial",
        format="numpy",
    )
    plain.set_epoch(pass_)
    lanes: list[list[int]] = [[] for _ in range(L)]
    for batch in plain:
        for lane, row in enumerate(batch["id"]):
            lanes[lane].append(int(row))
    return lanes


def _stream(rows: fb.Dataset, lane: int) -> Iterator[tuple[int, int]]:
    for pass_ in itertools.count():
        for row in _lane_orders(rows, pass_)[lane]:
            yield from ((row, token) for token in LISTS[row] or [])


def _reference(rows: fb.Dataset, steps: int) -> list[list[tuple[int, int]]]:
    """The global batches, written out by the rule."""
    streams = [_stream(rows, lane) for lane in range(L)]
    each = B // L
    return [
        [item for stream in streams for item in itertools.islice(stream, each)]
        for _ in range(steps)
    ]


def _pairs(batch: dict[str, Any]) -> list[tuple[int, int]]:
    return list(zip(batch["id"].tolist(), batch["tokens"].tolist(), strict=True))


# What comes out.


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.int64()), pa.large_list(pa.int64()), pa.list_(pa.int64(), 2)],
    ids=str,
)
def test_every_element_becomes_a_row(kind: pa.DataType, tmp_path: Path) -> None:
    lists: list[Any] = [[1, 2], None, [3, None], [5, 6]]
    if not pa.types.is_fixed_size_list(kind):
        lists[0] = []
    table = pa.table({"id": range(4), "x": pa.array(lists, kind)})
    path = write(tmp_path / "in.parquet", table, row_group_size=3)
    ds = fb.read_parquet(path).explode("x")
    expected = [{"id": i, "x": x} for i, row in enumerate(lists) for x in row or []]
    assert pa.schema(ds.schema).field("x").type == pa.int64()
    assert ds.count() == len(expected)
    assert _table(ds, tmp_path / "out").to_pylist() == expected


def test_steps_before_and_behind(rows: fb.Dataset, tmp_path: Path) -> None:
    ds = (
        rows.filter("id >= 20")
        .with_column("length", "array_length(tokens)")
        .rename({"tokens": "token"})
        .explode("token")
        .filter("token % 10 <> 1")
        .with_column("twice", "token * 2 + length")
        .select(["twice", "token", "id"])
        .limit(50)
    )
    expected = [
        {"twice": token * 2 + len(LISTS[row] or []), "token": token, "id": row}
        for row, token in ITEMS
        if row >= 20 and token % 10 != 1
    ]
    assert ds.count() == 50
    assert _table(ds, tmp_path / "out").to_pylist() == expected[:50]
    assert rows.limit(30).explode("tokens").count() == sum(row < 30 for row, _ in ITEMS)
    dropped = rows.explode("tokens").drop("tokens")
    assert dropped.columns == ["id", "name"]
    assert dropped.count() == len(ITEMS)


def test_a_list_may_stay_beside_its_elements(rows: fb.Dataset, tmp_path: Path) -> None:
    table = _table(rows.with_column("all", "tokens").explode("tokens"), tmp_path / "out")
    assert table["all"].to_pylist() == [LISTS[row] for row, _ in ITEMS]
    assert table["tokens"].to_pylist() == [token for _, token in ITEMS]


def test_lists_of_lists(tmp_path: Path) -> None:
    lists = [[[1], [2, 3]], [], None, [[], [4, 5, 6], None]]
    kind = pa.list_(pa.list_(pa.int64()))
    path = write(tmp_path / "in.parquet", pa.table({"id": range(4), "x": pa.array(lists, kind)}))
    ds = fb.read_parquet(path).explode("x").explode("x").filter("x <> 2")
    flat = [(i, x) for i, row in enumerate(lists) for y in row or [] for x in y or [] if x != 2]
    assert ds.count() == 5
    loader = ds.loader(batch_size=1, shuffle="none", steps=7, format="numpy")
    assert [(int(b["id"][0]), int(b["x"][0])) for b in loader] == [*flat, *flat[:2]]


def test_two_lists_side_by_side(rows: fb.Dataset) -> None:
    ds = rows.with_column("again", "tokens").explode("tokens").explode("again")
    assert ds.count() == sum(len(tokens) ** 2 for tokens in LISTS if tokens)


def test_command_line_and_plan(rows: fb.Dataset, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    out = tmp_path / "out"
    job.write_text(
        f"source: {{ parquet: {tmp_path}/data }}\n"
        "steps:\n  - explode: tokens\n  - filter: tokens > 100\n"
        f"sink: {{ parquet: {out} }}\n"
    )
    status, text, error = forebay("explain", job)
    assert status == 0, error
    assert "steps[0].explode: tokens: a row for each of its elements (Int64)" in text
    status, text, error = forebay("run", job)
    assert status == 0, error
    kept = len({row for row, token in ITEMS if token > 100})
    assert f"kept    {kept} rows, dropped {ROWS - kept}" in text
    got = pq.ParquetDataset(sorted(out.glob("*.parquet"))).read(["id", "tokens"]).to_pylist()
    assert [tuple(row.values()) for row in got] == [item for item in ITEMS if item[1] > 100]
    assert rows.explode("tokens").plan()["steps"] == [{"explode": "tokens"}]
    assert "steps[0].explode" in rows.explode("tokens").explain()


# The order.


def test_lanes_are_streams_of_the_rows_in_order(rows: fb.Dataset) -> None:
    steps = 3 * len(ITEMS) // B  # into the third pass
    loader = _loader(rows.explode("tokens"), steps=steps)
    assert len(loader) == steps
    assert loader.rows == ROWS
    assert [_pairs(batch) for batch in loader] == _reference(rows, steps)


def test_file_order_is_one_stream(rows: fb.Dataset) -> None:
    steps = len(ITEMS) // 5 + 2
    loader = rows.explode("tokens").loader(
        batch_size=5, shuffle="none", steps=steps, format="numpy"
    )
    got = [pair for batch in loader for pair in _pairs(batch)]
    assert got == list(itertools.islice(itertools.cycle(ITEMS), steps * 5))


def test_a_filter_behind_drops_items_only(rows: fb.Dataset) -> None:
    loader = _loader(rows.explode("tokens").filter("tokens % 2 = 0"), steps=12)
    streams = [_stream(rows, lane) for lane in range(L)]
    even = [(item for item in stream if item[1] % 2 == 0) for stream in streams]
    for batch in loader:
        assert _pairs(batch) == [i for s in even for i in itertools.islice(s, B // L)]


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_global_batches_do_not_depend_on_threads_and_ranks(
    rows: fb.Dataset, threads: int, world: int
) -> None:
    ds = rows.explode("tokens")
    ranks = [_loader(ds, rank=r, world_size=world, num_threads=threads) for r in range(world)]
    got = [
        [pair for batch in batches for pair in _pairs(batch)]
        for batches in zip(*ranks, strict=True)
    ]
    assert got == _reference(rows, STEPS)


# Iterations and positions.


def test_an_iteration_goes_on_where_the_one_before_ended(rows: fb.Dataset) -> None:
    loader = _loader(rows.explode("tokens"), steps=4)
    expected = _reference(rows, 12)
    for iteration in range(3):
        assert loader.epoch == iteration
        batches = iter(loader)
        assert [_pairs(next(batches)) for _ in range(2)] == expected[4 * iteration :][:2]
        del batches  # left early: the next loop starts this iteration again
        got = [_pairs(batch) for batch in loader]
        assert got == expected[4 * iteration : 4 * iteration + 4]
    loader.set_epoch(3)
    with pytest.raises(fb.InvalidInputError, match="through a state"):
        loader.set_epoch(0)


@pytest.mark.parametrize("done", range(STEPS + 1))
def test_a_state_goes_on_at_any_world_size(rows: fb.Dataset, done: int) -> None:
    ds = rows.explode("tokens")
    expected = _reference(rows, STEPS + 2)
    for before, after in [(1, 1), (2, 4), (4, 1), (4, 2)]:
        ranks = [_loader(ds, rank=r, world_size=before) for r in range(before)]
        iterators = [iter(loader) for loader in ranks]
        for _ in range(done):
            for iterator in iterators:
                next(iterator)
        states = [loader.state_dict() for loader in ranks]
        state = fb.merge_states(list(reversed(states)))
        assert (state["steps"], state["finished"]) == (done, done == STEPS)
        others = [_loader(ds, rank=r, world_size=after) for r in range(after)]
        for other in others:
            other.load_state_dict(json.loads(json.dumps(state)))
        assert fb.merge_states([other.state_dict() for other in others]) == state
        got = [
            [pair for batch in batches for pair in _pairs(batch)]
            for batches in zip(*others, strict=True)
        ]
        assert got == expected[done:STEPS]
        # Two steps of the iteration behind, and this one again if it is left.
        batches = zip(*others, strict=True)
        for want in expected[STEPS:]:
            assert [pair for batch in next(batches) for pair in _pairs(batch)] == want


def test_a_resumed_iteration_that_is_left_starts_at_its_beginning(rows: fb.Dataset) -> None:
    ds = rows.explode("tokens")
    first = _loader(ds, steps=4)
    assert sum(1 for _ in first) == 4
    batches = iter(first)
    next(batches)
    other = _loader(ds, steps=4)
    other.load_state_dict(first.state_dict())
    expected = _reference(rows, 8)[4:]
    assert _pairs(next(iter(other))) == expected[1]
    assert [_pairs(batch) for batch in other] == expected


def test_an_empty_state_changes_nothing(rows: fb.Dataset) -> None:
    loader = _loader(rows.explode("tokens"))
    before = loader.state_dict()
    loader.load_state_dict({})
    assert loader.state_dict() == before
    assert [at["next"] for at in before["positions"]] == [[0, 0, 0]] * L


def test_states_that_do_not_fit_are_refused(rows: fb.Dataset) -> None:
    ds = rows.explode("tokens")
    ranks = [_loader(ds, rank=r, world_size=2) for r in range(2)]
    states = [loader.state_dict() for loader in ranks]
    with pytest.raises(fb.InvalidInputError, match="merge_states"):
        ranks[0].load_state_dict(states[1])
    with pytest.raises(fb.InvalidInputError, match="no state has lane 2"):
        fb.merge_states(states[:1])
    with pytest.raises(fb.InvalidInputError, match="no state to merge"):
        fb.merge_states([])
    with pytest.raises(fb.InvalidInputError, match="state 1 is empty"):
        fb.merge_states([states[0], {}])
    with pytest.raises(TypeError, match="a list of states"):
        fb.merge_states(states[0])  # type: ignore[arg-type]
    next(iter(ranks[1]))
    with pytest.raises(fb.InvalidInputError, match="states 0 and 1 differ: steps is 0 and 1"):
        fb.merge_states([states[0], ranks[1].state_dict()])
    whole = fb.merge_states(states)
    ranks[0].load_state_dict(whole)
    with pytest.raises(fb.InvalidInputError, match="global batch of 8, and the loader has 16"):
        _loader(ds, global_batch_size=16).load_state_dict(whole)
    with pytest.raises(fb.InvalidInputError, match="steps="):
        _loader(ds, steps=2).load_state_dict({**whole, "steps": 3})
    plain = rows.drop("tokens").loader(batch_size=B, seed=7, format="numpy")
    with pytest.raises(fb.InvalidInputError, match="the plan"):
        plain.load_state_dict(whole)
    assert fb.merge_states([plain.state_dict(), plain.state_dict()]) == plain.state_dict()


def test_lanes_of_a_state_hold(rows: fb.Dataset) -> None:
    ds = rows.explode("tokens")
    loader = _loader(ds)
    batches = iter(loader)
    next(batches)
    other = _loader(ds, lanes=None, window=None)
    other.load_state_dict(loader.state_dict())
    assert other.stats()["lanes"] == L
    assert [_pairs(batch) for batch in other] == [_pairs(batch) for batch in batches]


# Pictures.


def _picture(number: int) -> bytes:
    pixels = np.arange(40 * 30 * 3, dtype=np.int64) * (number + 3) % 251
    image = Image.fromarray(pixels.reshape(40, 30, 3).astype(np.uint8))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def albums(tmp_path: Path) -> fb.Dataset:
    """Rows with a cover and a list of pictures."""
    pictures = [[_picture(row * 5 + i) for i in range(row % 4)] for row in range(24)]
    columns = {
        "id": range(24),
        "cover": [_picture(row) for row in range(24)],
        "pictures": pa.array(pictures, pa.list_(pa.binary())),
        "place": [list(range(row % 4)) for row in range(24)],
    }
    return fb.read_parquet(write(tmp_path / "albums.parquet", columns, row_group_size=6))


CROP = [fb.RandomResizedCrop(16), fb.RandomHorizontalFlip()]


def test_pictures_of_a_list_are_augmented_each(albums: fb.Dataset) -> None:
    ds = albums.drop(["cover", "place"]).explode("pictures")
    ds = ds.map_image("pictures", CROP, mode="RGB", dtype="uint8")
    options: dict[str, Any] = {"batch_size": 8, "lanes": 2, "steps": 11, "seed": 3}
    one, two = (
        digest(iter(ds.loader(**options, format="numpy", num_threads=threads)))
        for threads in (1, 2)
    )
    assert one == two
    # The same draws in a later pass would be the same pictures.
    loader = ds.loader(batch_size=36, shuffle="none", steps=2, format="numpy")
    first, second = (batch["pictures"] for batch in loader)
    assert first.shape == (36, 3, 16, 16)
    assert not np.array_equal(first, second)


def test_draws_are_those_of_the_row_for_its_first_item(albums: fb.Dataset) -> None:
    options: dict[str, Any] = {"shuffle": "none", "seed": 3, "format": "numpy"}
    plain = albums.select(["id", "cover"]).map_image("cover", CROP, mode="RGB")
    batches = plain.loader(6, **options)
    expected = {int(i): c for b in batches for i, c in zip(*b.values(), strict=True)}
    exploded = albums.select(["id", "cover", "place"]).explode("place")
    behind = exploded.map_image("cover", CROP, mode="RGB")
    before = albums.select(["id", "cover", "place"]).map_image("cover", CROP, mode="RGB")
    differ = 0
    for batch in behind.loader(4, steps=9, **options):
        for row, cover, place in zip(*batch.values(), strict=True):
            same = np.array_equal(cover, expected[int(row)])
            assert place > 0 or same
            differ += not same
    assert differ > 0
    # Made before, a picture is repeated as it is.
    for batch in before.explode("place").loader(4, steps=9, **options):
        for row, cover, _ in zip(*batch.values(), strict=True):
            np.testing.assert_array_equal(cover, expected[int(row)])


# What is refused, and what goes wrong.


def test_what_is_no_list_is_refused(rows: fb.Dataset, albums: fb.Dataset) -> None:
    with pytest.raises(fb.SchemaError, match=r"\"name\" is Utf8") as caught:
        rows.explode("name")
    assert "steps[0].explode" in str(caught.value)
    assert 'columns that hold lists: "tokens"' in str(caught.value)
    with pytest.raises(fb.InvalidInputError, match="did you mean"):
        rows.explode("token")
    with pytest.raises(TypeError, match="explode"):
        rows.explode(3)  # type: ignore[arg-type]
    tensor = albums.map_image("cover", CROP)
    with pytest.raises(fb.InvalidInputError, match="decoded already"):
        tensor.explode("cover")
    between = albums.explode("place").map_image("cover", CROP)
    with pytest.raises(fb.InvalidInputError, match="between two explodes"):
        between.explode("pictures")
    with pytest.raises(fb.InvalidInputError, match="there is no column"):
        rows.explode("tokens").filter("tokns > 3")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": None}, "give steps="),
        ({"steps": 0}, "loader\\(steps=0\\)"),
        ({"epoch_end": "drop"}, 'loader\\(epoch_end="drop"\\).*no end'),
        ({"shuffle": "full", "lanes": None, "window": None}, 'shuffle="window"'),
        ({"lanes": 3}, "lanes that divide it: 1, 2, 4, 8"),
        ({"lanes": 2, "rank": 0, "world_size": 4}, "divide it: 1, 2; or give lanes=4"),
        ({"lanes": None, "window": None, "rank": 0, "world_size": 2}, "or give lanes=2"),
        ({"shuffle": "none", "rank": 0, "world_size": 2}, "for one rank"),
    ],
    ids=str,
)
def test_options_that_a_stream_cannot_have(
    rows: fb.Dataset, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(fb.InvalidInputError, match=message):
        _loader(rows.explode("tokens"), **options)


def test_options_that_only_a_stream_has(rows: fb.Dataset) -> None:
    with pytest.raises(fb.InvalidInputError, match="leave steps out"):
        rows.drop("tokens").loader(batch_size=4, steps=3)
    limited = rows.explode("tokens").limit(10)
    with pytest.raises(fb.InvalidInputError, match=r"steps\[1\]\.limit.*cannot limit"):
        _loader(limited)
    assert limited.count() == 10
    loader = _loader(rows.limit(50).explode("tokens"))
    assert loader.rows == 50
    with pytest.raises(fb.UnsupportedError, match="num_workers=0"):
        loader._steps(1, 2)


def test_a_lane_that_gives_nothing_is_named(rows: fb.Dataset) -> None:
    with pytest.raises(fb.InvalidInputError, match="no row to begin with"):
        _loader(rows.filter("id < 0").explode("tokens"))
    with pytest.raises(fb.InvalidInputError, match="3 rows for 4 lanes"):
        _loader(rows.filter("id < 3").explode("tokens"))
    loader = _loader(rows.explode("tokens").filter("tokens = -1"))
    with pytest.raises(fb.ForebayError, match=r"lane \d gave no sample in 64 whole passes"):
        list(loader)


@pytest.mark.parametrize("threads", [1, 4])
def test_an_error_names_the_row_and_keeps_its_step(
    rows: fb.Dataset, tmp_path: Path, threads: int
) -> None:
    ds = rows.explode("tokens").with_column("inverse", "1 / (tokens - 772)")
    assert 772 in (LISTS[77] or [])
    before = ITEMS.index((77, 770))
    options: dict[str, Any] = {"shuffle": "none", "steps": 99, "format": "numpy"}
    for size in (3, 7):
        batches = iter(ds.loader(size, num_threads=threads, **options))
        got = [next(batches) for _ in range(before // size)]
        assert [pair for batch in got for pair in _pairs(batch)] == ITEMS[: before // size * size]
        with pytest.raises(fb.DataError, match=r"[Dd]ivi(sion|de)") as caught:
            next(batches)
        assert caught.value.row == 17
        assert caught.value.row_group == 1
        assert "b.parquet" in str(caught.value.file)
    with pytest.raises(fb.DataError) as caught:
        ds.write_parquet(tmp_path / "out")
    assert caught.value.row == 17


def test_nulls_of_elements(tmp_path: Path) -> None:
    lists = [[1, None], [3], [None, 5]]
    path = write(tmp_path / "in.parquet", {"id": range(3), "x": lists})
    ds = fb.read_parquet(path).explode("x")
    options: dict[str, Any] = {"shuffle": "none", "steps": 1, "format": "numpy"}
    with pytest.raises(fb.SchemaError, match="a null cannot go") as caught:
        list(ds.loader(5, **options))
    assert caught.value.row == 0
    (batch,) = ds.loader(5, fill=-1, **options)
    assert batch["x"].tolist() == [1, -1, 3, -1, 5]


def test_leaving_early_gives_everything_back(rows: fb.Dataset) -> None:
    ds = rows.explode("tokens")
    for _ in range(3):
        batches = iter(_loader(ds, steps=1000, memory_limit="1MiB"))
        next(batches)
        del batches  # `nothing_left` looks at the gauges


def test_long_lists_in_little_memory(tmp_path: Path) -> None:
    # Multiplied at once, a window would take 64 times its own size.
    text = ["x" * 2000 + str(row) for row in range(512)]
    lists = [list(range(64))] * 512
    path = write(tmp_path / "in.parquet", {"text": text, "n": lists}, row_group_size=64)
    ds = fb.read_parquet(path).explode("n")
    limit = 16 << 20
    loader = ds.loader(64, lanes=2, window=1, steps=300, format="numpy", memory_limit=limit)
    assert sum(len(batch["n"]) for batch in loader) == 64 * 300
    assert loader.stats()["memory_peak"] <= limit


def test_an_unlucky_lane_goes_on_with_the_next_pass(tmp_path: Path) -> None:
    # Three rows a lane, half of all rows empty: now and then a lane has the empty ones only.
    columns = {"tokens": [[i] if i % 2 else [] for i in range(12)]}
    ds = fb.read_parquet(write(tmp_path / "a.parquet", columns)).explode("tokens")
    lanes = [
        ds.loader(global_batch_size=4, lanes=4, steps=500, rank=rank, world_size=4, format="numpy")
        for rank in range(4)
    ]
    for lane in lanes:
        seen = [int(batch["tokens"][0]) for batch in lane]
        assert len(seen) == 500
        assert set(seen) == {1, 3, 5, 7, 9, 11}
    # Where nothing can come, one lane alone says so at once.
    with pytest.raises(fb.DataError, match="in the whole of pass 0"):
        list(ds.filter("tokens < 0").loader(4, steps=1))


def test_workers_of_a_data_loader_are_refused(tmp_path: Path) -> None:
    from torch.utils.data import DataLoader

    path = write(tmp_path / "a.parquet", {"tokens": [[1, 2], [3]]})
    loader = fb.read_parquet(path).explode("tokens").loader(1, steps=3)
    assert len(list(DataLoader(loader.as_torch(), batch_size=None))) == 3
    with pytest.raises(fb.UnsupportedError, match="num_workers=0"):
        list(DataLoader(loader.as_torch(), batch_size=None, num_workers=1))


def test_states_that_cannot_be_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"tokens": [[1, 2]] * 8})
    loader = fb.read_parquet(path).explode("tokens").loader(4, lanes=4, steps=3, format="numpy")
    next(iter(loader))
    state = loader.state_dict()
    for wrong in [{"lanes": 2}, {"positions": [state["positions"][0] | {"next": [2**63, 0, 0]}]}]:
        with pytest.raises(fb.ForebayError, match=r"load_state_dict|positions"):
            loader.load_state_dict(state | wrong)
    for nothing in ([], "", None):
        with pytest.raises(TypeError, match="state_dict"):
            loader.load_state_dict(nothing)  # type: ignore[arg-type]
