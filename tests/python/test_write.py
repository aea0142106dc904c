"""Writing Parquet: round trips, modes, the manifest, and nothing committed where a job fails."""

from __future__ import annotations

import datetime
import decimal
import json
import os
import random
import signal
import textwrap
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from support import child, data_files, finish, in_order, numbered, until, write

import forebay as fb


def _manifest(folder: Path) -> dict:
    return json.loads((folder / "_forebay" / "manifest.json").read_text())


def _every_type() -> pa.Table:
    return pa.table(
        {
            "bool": [True, None, False],
            "int": pa.array([1, None, -3], pa.int16()),
            "float": pa.array([0.5, None, float("nan")], pa.float32()),
            "text": ["x", None, ""],
            "bytes": [b"\0\xff", None, b""],
            "fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)),
            "large": pa.array(["x", None, "z"], pa.large_string()),
            "day": pa.array([datetime.date(2024, 2, 29), None, datetime.date(1969, 1, 1)]),
            "moment": pa.array([0, None, -1], pa.timestamp("us", "UTC")),
            "money": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-0.01")]),
            "list": [[1, 2], None, []],
            "dense": pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float64(), 2)),
            "struct": [{"x": 1, "y": [None]}, None, {"x": None, "y": None}],
            "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
            "word": pa.array(["p", None, "p"]).dictionary_encode(),
            "uint64": pa.array([2**64 - 1, None, 0], pa.uint64()),
            "half": pa.array(np.array([1.5, 2.5, 3.5], np.float16)),
        }
    )


def test_round_trip_of_every_type(tmp_path: Path) -> None:
    table = _every_type()
    path = write(tmp_path / "in.parquet", table)
    summary = fb.read_parquet(path).write_parquet(tmp_path / "out")
    assert (summary["rows_read"], summary["rows_written"], summary["files"]) == (3, 3, 1)
    assert summary["bytes_written"] == sum(p.stat().st_size for p in data_files(tmp_path / "out"))
    out = pq.read_table(tmp_path / "out")
    assert out.schema.types == pq.read_table(path).schema.types
    assert str(out.to_pydict()) == str(table.to_pydict())


def test_file_order_and_sizes(tmp_path: Path) -> None:
    path = numbered(tmp_path / "in.parquet", 300_000, row_group=10_000)
    summary = fb.read_parquet(path).write_parquet(
        tmp_path / "out", row_group_bytes="64KiB", file_bytes="512KiB", compression_level=1
    )
    files = data_files(tmp_path / "out")
    assert summary["files"] == len(files) > 2
    assert [entry["path"] for entry in _manifest(tmp_path / "out")["files"]] == [
        file.name for file in files
    ]
    rows = pa.concat_tables([pq.read_table(file) for file in files])
    assert rows.column("id").to_pylist() == list(range(300_000))
    for file in files:
        metadata = pq.ParquetFile(file).metadata
        assert file.stat().st_size < 2 * 512 * 1024
        assert metadata.num_row_groups > 1
        assert metadata.row_group(0).column(0).compression == "ZSTD"


@pytest.mark.parametrize("threads", [1, 3])
def test_output_does_not_depend_on_threads(tmp_path: Path, threads: int) -> None:
    path = numbered(tmp_path / "in.parquet", 50_000, row_group=1000)
    dataset = fb.read_parquet(path).filter("id % 3 = 0").with_column("twice", "id * 2")
    dataset.write_parquet(tmp_path / "out", num_threads=threads)
    (file,) = data_files(tmp_path / "out")
    table = pq.read_table(file)
    assert table.column("twice").to_pylist() == [2 * n for n in range(0, 50_000, 3)]


def test_modes(tmp_path: Path) -> None:
    dataset = fb.read_parquet(numbered(tmp_path / "in.parquet", 100))
    out = tmp_path / "out"
    dataset.write_parquet(out)
    with pytest.raises(fb.AlreadyExistsError, match="committed output") as caught:
        dataset.write_parquet(out)
    assert isinstance(caught.value, FileExistsError)
    assert "overwrite" in caught.value.hint
    assert "append" in caught.value.hint
    assert fb.read_parquet(out).count() == 100

    dataset.limit(5).write_parquet(out, mode="append")
    assert fb.read_parquet(out).count() == 105
    assert pq.read_table(out).num_rows == 105
    assert _manifest(out)["generation"] == 2

    dataset.limit(3).write_parquet(out, mode="overwrite")
    assert [b["id"].tolist() for b in in_order(fb.read_parquet(out))] == [[0, 1, 2]]
    assert pq.read_table(out).num_rows == 3
    assert len(data_files(out)) == 1


def test_overwrite_of_what_is_being_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "data" / "out"
    fb.read_parquet(numbered(tmp_path / "in.parquet", 1000)).write_parquet(out)
    (tmp_path / "link").symlink_to(out)
    before = data_files(out)
    for source in (out, tmp_path / "link"):
        for target in (out, tmp_path / "link", out.parent, tmp_path / "other" / ".." / "data"):
            (tmp_path / "other").mkdir(exist_ok=True)
            with pytest.raises(fb.InvalidInputError, match="holds its source") as caught:
                fb.read_parquet(source).write_parquet(target, mode="overwrite")
            assert "another folder" in caught.value.hint
    monkeypatch.chdir(out)
    other = fb.read_parquet(tmp_path / "in.parquet")
    for target in (".", "..", out):
        with pytest.raises(fb.InvalidInputError, match="the folder that this runs in"):
            other.write_parquet(target, mode="overwrite")
    assert data_files(out) == before


def test_overwrite_never_reaches_through_a_linked_folder(tmp_path: Path) -> None:
    source = tmp_path / "src"
    numbered(source / "precious.parquet", 10)
    dataset = fb.read_parquet(numbered(tmp_path / "in.parquet", 100))
    out = tmp_path / "out"
    out.mkdir()
    (out / "link").symlink_to("../src")
    with pytest.raises(fb.AlreadyExistsError, match="1 Parquet files in subfolders"):
        dataset.write_parquet(out, mode="overwrite")
    # A manifest may list what was there before: that is replaced in the manifest, not deleted.
    dataset.write_parquet(out, mode="append")
    assert fb.read_parquet(out).count() == 110
    dataset.limit(5).write_parquet(out, mode="overwrite")
    assert fb.read_parquet(out).count() == 5
    assert (source / "precious.parquet").exists()
    assert (out / "link").is_symlink()


def test_overwrite_of_foreign_files(tmp_path: Path) -> None:
    dataset = fb.read_parquet(numbered(tmp_path / "in.parquet", 100))
    out = tmp_path / "out"
    for name in ("a", "b", "c"):
        numbered(out / f"{name}.parquet", 10)
    numbered(out / "deep" / "d.parquet", 10)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(fb.AlreadyExistsError, match=r"1 Parquet files.*deep/d\.parquet") as caught:
        dataset.write_parquet(out, mode="overwrite")
    assert caught.value.place == "sink.parquet.uri"
    assert not (out / "_forebay").exists()
    (out / "deep" / "d.parquet").unlink()
    assert dataset.write_parquet(out, mode="overwrite")["files_replaced"] == 3
    assert fb.read_parquet(out).count() == 100
    assert len(list(out.glob("*.parquet"))) == 1
    assert (out / "notes.txt").read_text() == "mine"


def test_targets_that_are_no_folders(tmp_path: Path) -> None:
    dataset = fb.read_parquet(numbered(tmp_path / "in.parquet", 10))
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(fb.NotFoundError, match="link to a folder that does not exist"):
        dataset.write_parquet(tmp_path / "link")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "_forebay").write_text("a file")
    for mode in ("error", "append", "overwrite"):
        with pytest.raises(fb.InvalidInputError, match="_forebay is a file"):
            dataset.write_parquet(tmp_path / "out", mode=mode)
    for uri in ("http://x/y", "gs://b/c"):
        with pytest.raises(fb.InvalidInputError, match="unknown scheme"):
            dataset.write_parquet(uri)
    for uri in (tmp_path / "o" / "*.parquet", "s3://b/o?"):
        with pytest.raises(fb.InvalidInputError, match="is a pattern"):
            dataset.write_parquet(uri)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.parquet", "link", "out"]


@pytest.mark.parametrize("threads", [0, True, -1, 2**70, "2", 1.5, b"x"])
def test_threads_of_a_job_are_checked_as_those_of_a_loader(tmp_path: Path, threads: Any) -> None:
    dataset = fb.read_parquet(numbered(tmp_path / "in.parquet", 10))
    texts = []
    for call in (
        lambda: dataset.loader(4, num_threads=threads),
        lambda: dataset.write_parquet(tmp_path / "out", num_threads=threads),
    ):
        with pytest.raises((fb.InvalidInputError, TypeError)) as caught:
            call()
        texts.append(str(caught.value).replace("write_parquet(", "loader("))
    assert texts[0] == texts[1]
    assert "num_threads=" in texts[0]
    assert not (tmp_path / "out").exists()


def test_foreign_data_in_the_target_is_not_overwritten_by_mistake(tmp_path: Path) -> None:
    numbered(tmp_path / "out" / "mine.parquet", 10)
    dataset = fb.read_parquet(numbered(tmp_path / "in.parquet", 100))
    with pytest.raises(fb.AlreadyExistsError):
        dataset.write_parquet(tmp_path / "out")
    assert pq.read_table(tmp_path / "out").num_rows == 10


def test_the_manifest_decides_what_is_read(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fb.read_parquet(numbered(tmp_path / "in.parquet", 100)).write_parquet(out)
    # What a run that died between moving its files and its manifest would leave.
    numbered(out / "part-99999-dead.parquet", 7)
    assert fb.read_parquet(out).count() == 100
    os.remove(data_files(out)[0])
    with pytest.raises(fb.NotFoundError, match="manifest"):
        fb.read_parquet(out)


def test_other_readers_see_only_committed_files(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fb.read_parquet(numbered(tmp_path / "in.parquet", 100)).write_parquet(out)
    # The staging of a run that was killed.
    numbered(out / "_forebay" / "0123456789ab" / "part-00000-0123456789ab.parquet", 7)
    assert pq.read_table(out).num_rows == 100
    assert pyarrow.dataset.dataset(out).count_rows() == 100
    query = f"SELECT count(*), sum(id) FROM '{out}/*.parquet'"
    assert duckdb.sql(query).fetchall() == [(100, 4950)]
    assert fb.read_parquet(out).count() == 100
    assert fb.read_parquet(f"{out}/*.parquet").count() == 100


def test_hive_partitions_become_columns_of_the_output(tmp_path: Path) -> None:
    numbered(tmp_path / "in" / "k=a" / "x.parquet", 3)
    numbered(tmp_path / "in" / "k=b" / "x.parquet", 3)
    fb.read_parquet(tmp_path / "in").write_parquet(tmp_path / "out")
    table = pq.read_table(data_files(tmp_path / "out")[0])
    assert table.column("k").to_pylist() == ["a"] * 3 + ["b"] * 3


def test_images_and_stacks_are_written_as_tensors(photographs: str, tmp_path: Path) -> None:
    dataset = fb.read_parquet(photographs).limit(20)
    dataset = dataset.map_image("image", [fb.Resize([16, 16])], mode="RGB", dtype="uint8")
    dataset = dataset.stack(["id"], into="x")
    dataset.write_parquet(tmp_path / "out")
    direct = np.concatenate([b["image"] for b in in_order(dataset)])
    field = pa.schema(dataset.schema).field("image")
    assert pa.schema(fb.read_parquet(tmp_path / "out").schema).field("image").equals(field)
    (batch,) = in_order(fb.read_parquet(tmp_path / "out"))
    assert np.array_equal(batch["image"].reshape(direct.shape), direct)
    assert batch["x"].tolist() == [[float(n)] for n in range(20)]


# --- failures -------------------------------------------------------------------------------------


def _with_a_corrupt_image(photographs: str, folder: Path, row: int) -> str:
    table = pq.read_table(photographs)
    images = table.column("image").to_pylist()
    images[row] = images[row][: len(images[row]) // 3] + b"\0" * 50
    images[row] = b"\xff\xd8 this is no picture"
    return write(folder / "bad.parquet", {"image": images}, row_group_size=20)


def test_a_corrupt_image_in_the_middle_commits_nothing(photographs: str, tmp_path: Path) -> None:
    path = _with_a_corrupt_image(photographs, tmp_path, 130)
    dataset = fb.read_parquet(path).map_image("image", [fb.Resize([64, 64])], mode="RGB")
    with pytest.raises(fb.CorruptDataError) as caught:
        dataset.write_parquet(tmp_path / "out", file_bytes="1MiB")
    error = caught.value
    assert (error.file, error.row_group, error.row, error.column) == (path, 6, 130, "image")
    assert not (tmp_path / "out").exists()
    # Output that was there before stays what it was.
    old = tmp_path / "old"
    fb.read_parquet(numbered(tmp_path / "in.parquet", 10)).write_parquet(old)
    before = (data_files(old), _manifest(old))
    with pytest.raises(fb.CorruptDataError):
        dataset.write_parquet(old, mode="overwrite")
    assert (data_files(old), _manifest(old)) == before
    assert list(old.rglob("_forebay/*/*")) == []
    assert fb.read_parquet(old).count() == 10


def test_a_corrupt_image_in_a_loader_names_its_row(photographs: str, tmp_path: Path) -> None:
    path = _with_a_corrupt_image(photographs, tmp_path, 130)
    dataset = fb.read_parquet(path).map_image("image", [fb.Resize([8, 8])], mode="RGB")
    for threads in (1, 2):
        epoch = iter(dataset.loader(10, shuffle="none", format="numpy", num_threads=threads))
        for _ in range(13):
            next(epoch)
        with pytest.raises(fb.CorruptDataError) as caught:
            next(epoch)
        assert (caught.value.file, caught.value.row) == (path, 130)
        assert next(epoch, None) is None


WRITER = textwrap.dedent(
    """
    import sys
    import forebay as fb
    ds = fb.read_parquet([sys.argv[1]] * 60)
    print("started", flush=True)
    ds.write_parquet(sys.argv[2], mode=sys.argv[3], file_bytes="1MiB", row_group_bytes="256KiB")
    print("done", flush=True)
    """
)


def test_kill_9_in_mid_job_leaves_no_committed_output(tmp_path: Path) -> None:
    path = numbered(tmp_path / "in.parquet", 300_000, row_group=20_000)
    out = tmp_path / "out"
    process = child(WRITER, path, str(out), "error")
    # Far enough that files are staged.
    until(
        lambda: len(list(out.glob("_forebay/*/part-*.parquet"))) >= 2 or process.poll() is not None,
        "files are staged",
    )
    process.kill()
    status, printed, err = finish(process)
    assert (status, printed, err) == (-signal.SIGKILL, "started\n", "")
    assert data_files(out) == []
    assert not (out / "_forebay" / "manifest.json").exists()
    with pytest.raises(fb.NotFoundError):
        fb.read_parquet(out)
    # The next run cleans up after the dead one and commits as if nothing had been.
    fb.read_parquet(path).write_parquet(out)
    assert fb.read_parquet(out).count() == 300_000
    assert list(out.glob("_forebay/*/part-*.parquet")) == []


@pytest.mark.parametrize("seed", range(4))
def test_kill_9_at_any_moment_leaves_the_old_output_or_the_new(tmp_path: Path, seed: int) -> None:
    path = numbered(tmp_path / "in.parquet", 20_000, row_group=10_000)
    out = tmp_path / "out"
    fb.read_parquet(path).limit(7).write_parquet(out)
    process = child(WRITER, path, str(out), "overwrite")
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    until(
        lambda: len(list((out / "_forebay").iterdir())) > 2 or process.poll() is not None,
        "the run has begun",
    )
    # Not a measurement: any moment is a right one to be killed at.
    time.sleep(random.Random(seed).uniform(0, 0.4))
    process.kill()
    finish(process)
    assert fb.read_parquet(out).count() in (7, 60 * 20_000)
    for file in data_files(out):
        pq.read_table(file)
