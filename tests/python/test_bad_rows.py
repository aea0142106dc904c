"""Bad rows: what `on_error` does with them, what is counted and listed, and when it is too much."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from support import child, finish, forebay, write

import forebay as fb

ROWS = 120
BATCH = 12

# Row 7 of 120 and its kin, a stretch that begins and ends within row groups, and the last one.
BAD = {7, 8, 19, *range(40, 53), 77, 90, 91, 92, 119}

OPS = [fb.RandomCrop(8), fb.RandomHorizontalFlip()]

MIXES = [
    {"shuffle": "none"},
    {"shuffle": "full"},
    {"shuffle": "window", "lanes": 1, "window": 1},
    {"shuffle": "window", "lanes": 4, "window": 2},
    {"shuffle": "window", "lanes": 6, "window": 1},
]


def _png(side: int, seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def _value(row: int, bad: set[int]) -> bytes | None:
    """A picture; or each way to be none in turn: null, cut off, junk, too small, too large."""
    if row not in bad:
        return _png(12, row)
    whole = _png(12, row)
    huge = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\1\0\0\0\1\0\0\x08\2\0\0\0" + whole[29:]
    return [None, whole[: len(whole) // 2], b"not a picture", _png(4, row), huge][row % 5]


def _write(folder: Path, bad: set[int], **options: Any) -> str:
    """Two files of 60 rows in row groups of 7."""
    for part in range(2):
        rows = range(part * 60, part * 60 + 60)
        columns = {
            "image": pa.array([_value(row, bad) for row in rows], pa.binary()),
            "id": list(rows),
            "name": [f"row {row}" for row in rows],
            "tags": [list(range(row % 4)) for row in rows],
        }
        write(folder / f"part-{part}.parquet", columns, row_group_size=7, **options)
    return str(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _write(tmp_path_factory.mktemp("bad"), BAD)


def _images(
    folder: str, on_error: str, columns: tuple[str, ...] = ("image", "id", "name"), ops: Any = OPS
) -> fb.Dataset:
    dataset = fb.read_parquet(folder, columns=list(columns))
    return dataset.map_image("image", ops, mode="RGB", dtype="uint8", on_error=on_error)


def _loader(dataset: fb.Dataset, **options: Any) -> fb.Loader:
    options = {"global_batch_size": BATCH, "seed": 5, "format": "numpy", **options}
    options = {"rank": 0, "world_size": 1, "epoch_end": "drop", **options}
    return dataset.loader(**options)


class Model:
    """The order of an epoch, and every substitute, from what a loader with `null` delivers."""

    def __init__(self, folder: str, epoch: int = 0, bad: set[int] = BAD, **mix: Any) -> None:
        loader = _loader(_images(folder, "null"), epoch_end="partial", **mix)
        loader.set_epoch(epoch)
        self.lanes = loader.stats()["lanes"]
        self.bad = bad
        self.image: dict[int, np.ndarray] = {}
        self.order = [-1] * ROWS
        for step, batch in enumerate(loader):
            samples = self.layout(step)[: len(batch["id"])]
            for k, row, image in zip(samples, batch["id"].tolist(), batch["image"], strict=True):
                self.order[k] = row
                self.image[row] = image
        assert sorted(self.order) == list(range(ROWS))

    def layout(self, step: int) -> list[int]:
        """The samples of a global batch, as they are laid out in it."""
        samples = range(step * BATCH, min(step * BATCH + BATCH, ROWS))
        return sorted(samples, key=lambda k: (k % self.lanes, k // self.lanes))

    def row(self, k: int) -> int:
        """The row that is delivered as sample k."""
        lane = self.order[k % self.lanes :: self.lanes]
        at = k // self.lanes
        return next(row for row in [*lane[at:], *lane[:at]] if row not in self.bad)

    def rows(self, step: int) -> list[int]:
        return [self.row(k) for k in self.layout(step)]

    def check(self, step: int, ranks: list[dict[str, Any]]) -> None:
        rows = self.rows(step)
        assert [row for batch in ranks for row in batch["id"].tolist()] == rows
        assert [name for batch in ranks for name in batch["name"]] == [f"row {r}" for r in rows]
        images = np.concatenate([batch["image"] for batch in ranks])
        assert np.array_equal(images, np.stack([self.image[row] for row in rows]))


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("epoch", [0, 2])
def test_skip_delivers_the_next_good_row_of_the_lane(folder: str, mix: dict, epoch: int) -> None:
    model = Model(folder, epoch, **mix)
    dataset = _images(folder, "skip")
    for world in (1, 2, 3):
        loaders = [_loader(dataset, rank=r, world_size=world, **mix) for r in range(world)]
        for loader in loaders:
            loader.set_epoch(epoch)
        steps = zip(*loaders, strict=True)
        for step, ranks in enumerate(steps):
            model.check(step, list(ranks))
        assert step == ROWS // BATCH - 1
        stats = [loader.stats() for loader in loaders]
        for counter in ("bad_rows", "dropped_rows", "repeated_rows"):
            assert sum(s[counter] for s in stats) == len(BAD), counter


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("options", [{"num_threads": 1, "prefetch": 1}, {"num_threads": 4}])
def test_substitutes_do_not_depend_on_threads(folder: str, mix: dict, options: dict) -> None:
    model = Model(folder, **mix)
    for step, batch in enumerate(_loader(_images(folder, "skip"), **mix, **options)):
        model.check(step, [batch])


@pytest.mark.parametrize("mix", MIXES)
def test_an_epoch_with_skips_resumes_at_every_batch(folder: str, mix: dict) -> None:
    model = Model(folder, **mix)
    dataset = _images(folder, "skip")
    loader, null = _loader(dataset, **mix), _loader(_images(folder, "null"), **mix)
    states = []
    for _ in zip(loader, null, strict=True):
        states.append(loader.state_dict())
        other = {**null.state_dict(), "plan": states[-1]["plan"]}
        assert states[-1] == other, "a state knows nothing of bad rows"
    for done, state in enumerate(states, 1):
        for world in (1, 2):
            ranks = [_loader(dataset, rank=r, world_size=world, **mix) for r in range(world)]
            for rank in ranks:
                rank.load_state_dict(state)
            for step, batches in enumerate(zip(*ranks, strict=True), done):
                model.check(step, list(batches))


def test_pad_repeats_what_was_delivered(folder: str) -> None:
    mix = {"shuffle": "window", "lanes": 5, "window": 2}
    options = {"global_batch_size": 25, "epoch_end": "pad", **mix}
    loader = _loader(_images(folder, "skip"), **options)
    null = _loader(_images(folder, "null"), **options)
    own: dict[int, int] = {}
    for batch, other in zip(loader, null, strict=True):
        assert np.array_equal(batch["_repeat"], other["_repeat"])
        for row, source in zip(batch["id"].tolist(), other["id"].tolist(), strict=True):
            # A row is always replaced by the same one.
            assert own.setdefault(source, row) == row
            assert (row == source) == (source not in BAD)
    assert loader.stats()["bad_rows"] == len(BAD), "repeats are counted in their own places"


def test_workers_of_torch_deliver_the_same(folder: str) -> None:
    torch = pytest.importorskip("torch")
    mix = MIXES[3]
    model = Model(folder, **mix)
    loader = _loader(_images(folder, "skip"), format="torch", **mix)
    steps = loader.as_torch()
    for workers in (0, 2):
        loader.set_epoch(0)
        batches = torch.utils.data.DataLoader(steps, batch_size=None, num_workers=workers)
        seen = 0
        for step, batch in enumerate(batches):
            assert batch["id"].tolist() == model.rows(step)
            seen += 1
        assert seen == ROWS // BATCH


def test_skip_beside_lists_and_pictures_of_any_size(folder: str) -> None:
    """What cannot be written in place is made anew."""
    mix = MIXES[3]
    model = Model(folder, **mix)
    columns = ("image", "id", "name", "tags")
    loader = _loader(_images(folder, "skip", columns), lists="ragged", **mix)
    for step, batch in enumerate(loader):
        model.check(step, [batch])
        values, offsets = batch["tags"].values, batch["tags"].offsets
        for i, row in enumerate(model.rows(step)):
            assert values[offsets[i] : offsets[i + 1]].tolist() == list(range(row % 4))
    # Without the crop a small picture is as good as any.
    small = {row for row in BAD if row % 5 == 3}
    model.bad = BAD - small
    for step, batch in enumerate(_loader(_images(folder, "skip", ops=[]), **mix)):
        assert batch["id"].tolist() == model.rows(step)
        for row, image in zip(batch["id"].tolist(), batch["image"], strict=True):
            side = 4 if row in small else 12
            assert np.array_equal(
                image.transpose(1, 2, 0),
                np.random.default_rng(row).integers(0, 256, (side, side, 3), dtype=np.uint8),
            )


@pytest.mark.parametrize("format", ["numpy", "torch", "arrow", "dlpack"])
def test_null_gives_zeros_and_says_so(folder: str, format: str) -> None:
    dataset = _images(folder, "null")
    assert dataset.columns == ["image", "image_valid", "id", "name"]
    assert pa.schema(dataset.schema).field("image_valid").type == pa.bool_()
    assert "image_valid" in dataset.explain()
    loader = _loader(dataset, shuffle="none", epoch_end="partial", format=format)
    rows = []
    for batch in loader:
        if format == "arrow":
            table = batch.to_pyarrow()
            assert table.schema.names == dataset.columns
            valid = table["image_valid"].to_numpy(zero_copy_only=False)
            image = table["image"].to_numpy_ndarray()
            rows += table["id"].to_pylist()
        else:
            assert list(batch) == dataset.columns
            valid, image = np.asarray(batch["image_valid"]), np.asarray(batch["image"])
            rows += np.asarray(batch["id"]).tolist()
        assert valid.dtype == bool
        assert valid.tolist() == [row not in BAD for row in rows[-len(valid) :]]
        assert image.reshape(len(valid), -1).any(axis=1).tolist() == valid.tolist()
    assert rows == list(range(ROWS))
    stats = loader.stats()
    assert (stats["bad_rows"], stats["dropped_rows"], stats["repeated_rows"]) == (len(BAD), 0, 0)


def test_null_without_a_size_has_no_pixels(folder: str) -> None:
    for layout, empty in (("CHW", (3, 0, 0)), ("HWC", (0, 0, 3))):
        dataset = fb.read_parquet(folder).map_image(
            "image", [], mode="RGB", layout=layout, on_error="null"
        )
        loader = _loader(dataset.drop("tags"), shuffle="none", epoch_end="partial")
        small = {row for row in BAD if row % 5 == 3}
        for batch in loader:
            for row, valid, image in zip(
                batch["id"].tolist(), batch["image_valid"], batch["image"], strict=True
            ):
                assert valid == (row not in BAD - small)
                assert (image.shape == empty) == (not valid)


def test_a_column_that_skips_beside_one_of_nulls_and_one_that_raises(tmp_path: Path) -> None:
    rows = range(16)
    columns = {
        "a": [_value(row, {3, 4}) for row in rows],
        "b": [_value(row, {4, 5, 6}) for row in rows],
        "id": list(rows),
    }
    write(tmp_path / "x.parquet", columns, row_group_size=5)
    dataset = fb.read_parquet(tmp_path)
    for column, policy in (("a", "skip"), ("b", "null")):
        dataset = dataset.map_image(column, OPS, mode="RGB", on_error=policy)
    dataset = dataset.rename({"b": "c"})
    loader = _loader(dataset, global_batch_size=8, shuffle="none")
    first, second = loader
    # Row 5 stands in for 3 and 4, and is null in the other column there too.
    assert first["id"].tolist() == [0, 1, 2, 5, 5, 5, 6, 7]
    assert first["c_valid"].tolist() == [True] * 3 + [False] * 4 + [True]
    assert second["c_valid"].all()
    assert loader.stats()["bad_rows"] == 4, "rows 3, 4, 5 and 6"
    raising = fb.read_parquet(tmp_path).map_image("a", OPS, mode="RGB", on_error="skip")
    raising = raising.map_image("b", OPS, mode="RGB")
    with pytest.raises(fb.ForebayError) as caught:
        list(_loader(raising, global_batch_size=8, shuffle="none"))
    assert (caught.value.row, caught.value.column) == (4, "b")


def test_a_lane_without_a_good_row_is_an_error(tmp_path: Path) -> None:
    path = _write(tmp_path, set(range(ROWS)))
    for mix in MIXES:
        with pytest.raises(fb.DataError, match="all of them are bad") as caught:
            list(_loader(_images(path, "skip"), **mix))
        error = caught.value
        assert error.file.startswith(path)
        assert error.column == "image"
        assert "null" in error.hint
    # Zeros are delivered all the same.
    assert len(list(_loader(_images(path, "null"), **MIXES[3]))) == ROWS // BATCH


def test_one_good_row_stands_for_all(tmp_path: Path) -> None:
    path = _write(tmp_path, set(range(ROWS)) - {33})
    for batch in _loader(_images(path, "skip"), shuffle="full"):
        assert set(batch["id"].tolist()) == {33}


def test_what_is_no_bad_row_stops_all_the_same(tmp_path: Path) -> None:
    """A store that fails and a column that holds no images are nothing to be skipped."""
    path = Path(_write(tmp_path, BAD))
    loader = _loader(_images(str(path), "skip"), shuffle="none")
    part = path / "part-1.parquet"
    whole = part.read_bytes()
    part.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(fb.ForebayError) as caught:
        list(loader)
    assert caught.value.file == str(part)
    assert loader.stats()["bad_rows"] <= 16


def test_an_epoch_left_early_leaves_nothing_behind(tmp_path: Path) -> None:
    """Also where substitutes are being looked for: half of the rows are bad."""
    path = _write(tmp_path, {row for row in range(ROWS) if row % 11 % 2})
    loader = _loader(_images(path, "skip"), global_batch_size=6, prefetch=8, **MIXES[4])
    for steps in range(20):
        for step, _ in enumerate(loader):
            if step == steps % 4:
                break
    assert loader.state_dict()["epoch"] == 0


def test_photographs_of_which_one_is_cut_off(photographs: str, tmp_path: Path) -> None:
    """I4: `raise` names file and row; `skip` replaces it and counts it."""
    for path in sorted(Path(photographs).iterdir()):
        table = pq.read_table(path)
        images = table["image"].to_pylist()
        if path.name == "part-1.parquet":
            images[42] = images[42][: len(images[42]) // 3]
        table = table.set_column(0, "image", pa.array(images))
        write(tmp_path / path.name, table, row_group_size=20)

    def dataset(on_error: str) -> fb.Dataset:
        ops = [fb.RandomResizedCrop(64), fb.RandomHorizontalFlip()]
        read = fb.read_parquet(tmp_path)
        return read.map_image("image", ops, mode="RGB", on_error=on_error)

    options = {"batch_size": 20, "seed": 3, "format": "numpy"}
    with pytest.raises(fb.CorruptDataError) as caught:
        list(dataset("raise").loader(**options))
    error = caught.value
    assert error.file == str(tmp_path / "part-1.parquet")
    assert (error.row_group, error.row, error.column) == (2, 42, "image")
    assert "on_error" in error.hint
    loader = dataset("skip").loader(**options, max_bad_rows=1)
    good = [row for batch in loader for row in batch["id"].tolist()]
    order = [r for b in dataset("null").loader(**options) for r in b["id"].tolist()]
    at = order.index(142)
    assert loader.stats()["lanes"] == 1
    assert good == [*order[:at], order[(at + 1) % 200], *order[at + 1 :]]
    assert loader.stats()["dropped_rows"] == loader.stats()["repeated_rows"] == 1


# ── limits, and the list ────────────────────────────────────────────────────────────────────────


def _steps_before_the_error(loader: fb.Loader) -> tuple[int, fb.ForebayError]:
    seen: list[Any] = []
    with pytest.raises(fb.DataError) as caught:
        seen.extend(0 for _ in loader)
    return len(seen), caught.value


@pytest.mark.parametrize("policy", ["skip", "null"])
def test_too_many_bad_rows_end_an_epoch_at_the_same_step(folder: str, policy: str) -> None:
    mix = MIXES[3]
    model = Model(folder, **mix)
    bad = [sum(model.order[k] in BAD for k in model.layout(step)) for step in range(10)]
    for most in (0, 4, len(BAD) - 1):
        passes = next(i for i in range(10) if sum(bad[: i + 1]) > most)
        for threads in (1, 4):
            loader = _loader(_images(folder, policy), max_bad_rows=most, num_threads=threads, **mix)
            steps, error = _steps_before_the_error(loader)
            assert steps == passes
            assert f"max_bad_rows is {most}" in str(error)
            assert error.row is not None
            assert "bad_rows_to" in error.hint
            assert loader.state_dict()["samples"] == steps * BATCH
    loader = _loader(_images(folder, policy), max_bad_rows=len(BAD), **mix)
    assert len(list(loader)) == len(list(loader)) == 10, "each epoch has its own"


def test_a_share_is_looked_at_in_the_end(folder: str) -> None:
    steps, error = _steps_before_the_error(
        _loader(_images(folder, "null"), max_bad_share=0.1, shuffle="none")
    )
    assert steps == 10
    assert f"{len(BAD)} of {ROWS} rows are bad, and max_bad_share is 0.1" in str(error)
    loader = _loader(_images(folder, "null"), max_bad_share=0.5, shuffle="none")
    assert len(list(loader)) == 10


def _listed(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _global_row(entry: dict[str, Any]) -> int:
    return entry["row"] + (60 if entry["file"].endswith("part-1.parquet") else 0)


@pytest.mark.parametrize("policy", ["skip", "null"])
def test_bad_rows_are_listed_once_an_epoch(folder: str, tmp_path: Path, policy: str) -> None:
    path = tmp_path / "bad rows.jsonl"
    dataset = _images(folder, policy)
    ranks = [_loader(dataset, rank=r, world_size=2, bad_rows_to=path, **MIXES[3]) for r in range(2)]
    for rank in ranks:
        # An epoch that is left early begins again.
        for _ in rank:
            break
        assert len(list(rank)) == len(list(rank)) == 10
    entries = _listed(path)
    for epoch in (0, 1):
        mine = [entry for entry in entries if entry["epoch"] == epoch]
        assert sorted(_global_row(entry) for entry in mine) == sorted(BAD)
    assert len(entries) == 2 * len(BAD)
    for entry in entries:
        assert entry["column"] == "image"
        assert entry["row_group"] == entry["row"] // 7
        assert entry["kind"] in {"schema", "corrupt", "resource", "invalid_input", "unsupported"}
        assert entry["cause"]
    assert {entry["cause"] for entry in entries if _global_row(entry) % 5 == 0} == {
        "the image is null"
    }


def test_a_killed_process_keeps_what_it_listed(folder: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    code = """
import os, signal, sys
import forebay as fb
ds = fb.read_parquet(sys.argv[1]).drop("tags")
ds = ds.map_image("image", [fb.RandomCrop(8)], mode="RGB", on_error="skip")
options = {"shuffle": "none", "epoch_end": "drop", "format": "numpy", "bad_rows_to": sys.argv[2]}
for step, batch in enumerate(ds.loader(12, **options)):
    if step == 4:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    status, _, err = finish(child(code, folder, str(path)))
    assert status == -signal.SIGKILL, err
    assert [_global_row(entry) for entry in _listed(path)] == sorted(r for r in BAD if r < 60)


def test_a_list_that_cannot_be_written(folder: str, tmp_path: Path) -> None:
    dataset = _images(folder, "skip")
    for path, kind in ((tmp_path / "no" / "x", fb.NotFoundError), (tmp_path, fb.StorageError)):
        with pytest.raises(kind, match="list bad rows") as caught:
            _loader(dataset, bad_rows_to=path)
        assert caught.value.hint
    with pytest.raises(TypeError, match="bad_rows_to"):
        _loader(dataset, bad_rows_to=3)
    # Where it is full when the first bad row comes, the epoch ends there.
    loader = _loader(dataset, bad_rows_to="/dev/full", shuffle="none")
    with pytest.raises(fb.StorageError, match="list of bad rows"):
        list(loader)


def test_streams_list_a_row_once(tmp_path: Path) -> None:
    columns = {
        "image": [_value(row, {2, 3}) for row in range(6)],
        "token": [[row] * 10 for row in range(6)],
    }
    write(tmp_path / "x.parquet", columns)
    dataset = fb.read_parquet(tmp_path).map_image("image", OPS, mode="RGB", on_error="null")
    dataset = dataset.explode("token")
    path = tmp_path / "bad.jsonl"
    loader = dataset.loader(
        4, shuffle="none", steps=15, format="numpy", prefetch=1, bad_rows_to=path
    )
    for batch in loader:
        assert batch["image_valid"].tolist() == [t not in (2, 3) for t in batch["token"].tolist()]
    assert loader.stats()["bad_rows"] == 20, "samples"
    assert [entry["row"] for entry in _listed(path)] == [2, 3]


# ── what is refused ─────────────────────────────────────────────────────────────────────────────


def test_what_does_not_go_together(folder: str) -> None:
    read = fb.read_parquet(folder)
    image = {"ops": OPS, "mode": "RGB"}
    skip = read.map_image("image", **image, on_error="skip")
    for make, words in [
        (lambda: skip.loader(4, epoch_end="partial"), ["partial", "null"]),
        (lambda: skip.loader(4, shuffle="none"), ["the default of", "drop"]),
        (lambda: skip.explode("tags").loader(4, steps=3), ["stream", "null"]),
        (lambda: skip.limit(5), ["limit", "before"]),
        (lambda: read.map_image("image", OPS, on_error="skip"), ["mode"]),
        (lambda: read.map_image("image", OPS, on_error="null"), ["mode"]),
        (
            lambda: read.with_column("image_valid", "id").map_image(
                "image", **image, on_error="null"
            ),
            ["image_valid", "rename"],
        ),
        (lambda: skip.loader(4, max_bad_share=2), ["max_bad_share"]),
        (lambda: skip.loader(4, bad_rows_to="s3://bucket/x"), ["local file"]),
    ]:
        with pytest.raises(fb.InvalidInputError) as caught:
            make()
        for word in words:
            assert word in str(caught.value), caught.value
    with pytest.raises(TypeError, match="on_error"):
        read.map_image("image", OPS, mode="RGB", on_error=None)  # type: ignore[arg-type]


# ── batch jobs ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("threads", [1, 4])
def test_a_job_leaves_skipped_rows_out(folder: str, tmp_path: Path, threads: int) -> None:
    path = tmp_path / "bad.jsonl"
    dataset = _images(folder, "skip", ("image", "id", "name", "tags"))
    summary = dataset.write_parquet(
        tmp_path / "out", num_threads=threads, bad_rows_to=path, max_bad_share=0.5
    )
    good = [row for row in range(ROWS) if row not in BAD]
    assert (summary["rows_written"], summary["rows_bad"]) == (len(good), len(BAD))
    table = pq.read_table(tmp_path / "out")
    assert table["id"].to_pylist() == good
    assert table["name"].to_pylist() == [f"row {row}" for row in good]
    assert table["tags"].to_pylist() == [list(range(row % 4)) for row in good]
    whole = _write(tmp_path / "whole", set())
    _images(whole, "raise").write_parquet(tmp_path / "all")
    all_of_them = pq.read_table(tmp_path / "all")["image"].combine_chunks()
    images = table["image"].combine_chunks()
    assert np.array_equal(images.to_numpy_ndarray(), all_of_them.to_numpy_ndarray()[good])
    entries = _listed(path)
    assert [_global_row(entry) for entry in entries] == sorted(BAD)
    assert all("epoch" not in entry for entry in entries)


def _job(folder: str, out: Path, on_error: str, sink: str = "", steps: str = "") -> str:
    return (
        f"source: {{ parquet: {{ uri: {folder}, columns: [image, id, tags] }} }}\n"
        f"steps:\n{steps}  - map_image: {{ column: image, ops: [random_crop: 8], mode: RGB, "
        f"dtype: uint8, on_error: {on_error} }}\n"
        f"sink: {{ parquet: {{ uri: {out}{sink} }} }}\n"
    )


def test_job_files(folder: str, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(_job(folder, tmp_path / "skipped", "skip"))
    status, printed, err = forebay("run", job)
    assert status == 0, err
    assert f"bad     {len(BAD)} rows: {len(BAD)} left out, 0 null" in printed
    assert "bad rows are skipped" in forebay("explain", job)[1]
    # YAML's null is the word.
    job.write_text(_job(folder, tmp_path / "null", "null"))
    status, printed, err = forebay("run", job, "--json")
    assert status == 0, err
    summary = json.loads(printed)
    assert (summary["rows_bad"], summary["rows_dropped_bad"]) == (len(BAD), 0)
    assert summary["rows_kept"] == summary["rows_written"] == ROWS
    table = pq.read_table(tmp_path / "null")
    assert table.schema.names == ["image", "image_valid", "id", "tags"]
    assert table["image_valid"].to_pylist() == [row not in BAD for row in range(ROWS)]
    assert not table["image"][7].to_numpy().any()
    # Rows of a source that were multiplied are left out where all that they became is.
    job.write_text(_job(folder, tmp_path / "tags", "skip", steps="  - explode: tags\n"))
    status, printed, err = forebay("run", job, "--json")
    assert status == 0, err
    summary = json.loads(printed)
    kept = [row for row in range(ROWS) if row not in BAD and row % 4]
    assert summary["rows_kept"] == len(kept)
    assert summary["rows_written"] == sum(row % 4 for row in kept)


def test_a_job_with_too_many_bad_rows_commits_nothing(folder: str, tmp_path: Path) -> None:
    job, listed = tmp_path / "job.yaml", tmp_path / "bad.jsonl"
    for n, (limit, words) in enumerate(
        [
            ("max_bad_rows: 3", "max_bad_rows is 3"),
            ("max_bad_share: 0.1", "max_bad_share is 0.1"),
            ("max_bad_share: 0.07", "3 of 40 rows are bad, and max_bad_share is 0.07"),
        ]
    ):
        out = tmp_path / f"out-{n}"
        # A limit that is reached before the last row is an end like any other.
        steps = "  - limit: 40\n" if "40" in words else ""
        sink = f", {limit}, bad_rows_to: {listed}"
        job.write_text(_job(folder, out, "skip", sink, steps))
        status, printed, err = forebay("run", job)
        assert (status, printed) == (1, "")
        for word in (words, "part-0.parquet", "row 7", "caused by"):
            assert word in err
        assert not list(out.glob("*.parquet"))
    assert {_global_row(entry) for entry in _listed(listed)} == BAD
    job.write_text(_job(folder, tmp_path / "x", "skip", f", bad_rows_to: {tmp_path}/no/x"))
    status, _, err = forebay("run", job)
    assert status != 0
    assert "sink.parquet.bad_rows_to" in err


def test_rows_that_are_all_bad_make_an_empty_output(tmp_path: Path) -> None:
    path = _write(tmp_path / "in", set(range(ROWS)))
    summary = _images(path, "skip").write_parquet(tmp_path / "out")
    assert (summary["rows_written"], summary["rows_bad"]) == (0, ROWS)
    assert fb.read_parquet(tmp_path / "out").count() == 0


# ── substitutes from a store ────────────────────────────────────────────────────────────────────


@pytest.fixture
def remote(s3_environment: Any, folder: str) -> Iterator[str]:
    s3_environment.create_bucket("bad")
    for path in Path(folder).iterdir():
        s3_environment.put(f"bad/in/{path.name}", path.read_bytes())
    return "s3://bad/in/"


def test_substitutes_come_from_a_store_too(folder: str, remote: str) -> None:
    """Without a page index their whole blocks are read."""
    for mix in MIXES:
        model = Model(folder, **mix)
        for step, batch in enumerate(_loader(_images(remote, "skip"), **mix)):
            model.check(step, [batch])
