"""Snapshots: saved, read, compared, refreshed, and what is no snapshot."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from s3_server import S3Server
from support import DATA, digest, forebay, in_order, numbered, write

import forebay as fb

CORPUS = sorted((DATA / "parquet-testing" / "data").glob("*.parquet"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files, one of them with a page index and many blocks."""
    data = tmp_path / "data"
    numbered(data / "a.parquet", 300, row_group=100)
    columns = {"id": np.arange(300, 700), "half": np.random.default_rng(0).random(400)}
    write(data / "b.parquet", columns, row_group_size=150, write_page_index=True)
    return data


def _saved(dataset: fb.Dataset, path: Path) -> fb.Dataset:
    dataset.snapshot().save(path)
    return fb.read_snapshot(path)


def test_a_saved_snapshot_is_the_same_dataset(folder: Path, tmp_path: Path) -> None:
    dataset = fb.read_parquet(folder)
    again = _saved(dataset, tmp_path / "snap.json")
    assert again.snapshot().id == dataset.snapshot().id
    assert (again.count(), again.columns) == (700, dataset.columns)
    options = {"seed": 3, "lanes": 4, "window": 1, "format": "numpy"}
    assert digest(again.loader(16, **options)) == digest(dataset.loader(16, **options))
    assert again.filter("id >= 650").count() == 50
    assert fb.read_snapshot(tmp_path / "snap.json", columns=["half"]).columns == ["half"]
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    # Another process gets the path of the snapshot, not a listing.
    assert pickle.loads(pickle.dumps(again)).count() == 700


def test_it_is_not_listed_again(folder: Path, tmp_path: Path) -> None:
    dataset = fb.read_parquet([folder, folder / "a.parquet"])
    again = _saved(dataset, tmp_path / "snap.json")
    assert again.count() == 1000
    numbered(folder / "c.parquet", 50)
    later = fb.read_snapshot(tmp_path / "snap.json")
    assert later.count() == 1000
    assert sum(len(b["id"]) for b in in_order(later)) == 1000


def test_the_id_survives_a_copy_and_knows_a_change(folder: Path, tmp_path: Path) -> None:
    base = fb.read_parquet(folder).snapshot().id
    assert len(base) == 32
    copy = tmp_path / "elsewhere" / "deep"
    shutil.copytree(folder, copy)
    assert fb.read_parquet(copy).snapshot().id == base
    os.utime(copy / "a.parquet", (1, 1))
    assert fb.read_parquet(copy).snapshot().id == base
    seen = {base}
    (copy / "a.parquet").rename(copy / "aa.parquet")
    seen.add(fb.read_parquet(copy).snapshot().id)
    (copy / "aa.parquet").rename(copy / "a.parquet")
    assert fb.read_parquet(copy).snapshot().id == base
    # The same rows, size and place, another value in the statistics.
    ids = np.arange(300)
    ids[0] = -7
    write(copy / "a.parquet", {"id": ids, "half": ids * 0.5}, row_group_size=100)
    seen.add(fb.read_parquet(copy).snapshot().id)
    numbered(copy / "a.parquet", 300, row_group=150)
    seen.add(fb.read_parquet(copy).snapshot().id)
    seen.add(fb.read_parquet([copy / "b.parquet", copy / "a.parquet"]).snapshot().id)
    seen.add(fb.read_parquet([copy, copy]).snapshot().id)
    assert len(seen) == 6


def test_a_refresh_reads_only_what_is_new(folder: Path, tmp_path: Path) -> None:
    before = fb.read_parquet(folder).snapshot()
    assert before.refresh().id == before.id
    numbered(folder / "c.parquet", 50)
    numbered(folder / "a.parquet", 310, row_group=100)
    fresh = before.refresh()
    assert (fresh.rows, fresh.files) == (760, 3)
    assert fresh.id == fb.read_parquet(folder).snapshot().id
    # A footer that is known is not read: the file may even be unreadable by now.
    before = fresh
    size, stat = (folder / "b.parquet").stat().st_size, (folder / "b.parquet").stat()
    with (folder / "b.parquet").open("r+b") as file:
        file.seek(size - 4)
        file.write(b"XXXX")
    os.utime(folder / "b.parquet", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert before.refresh().id == before.id


def test_pins_are_checked_when_a_file_is_read(folder: Path, tmp_path: Path) -> None:
    again = _saved(fb.read_parquet(folder), tmp_path / "snap.json")
    numbered(folder / "a.parquet", 300, row_group=100)
    for dataset in (again, fb.read_snapshot(tmp_path / "snap.json")):
        with pytest.raises(fb.ChangedError, match=r"a\.parquet"):
            in_order(dataset)
    (folder / "a.parquet").unlink()
    with pytest.raises(fb.ForebayError, match=r"a\.parquet"):
        in_order(fb.read_snapshot(tmp_path / "snap.json"))


def test_hive_partitions_are_kept(tmp_path: Path) -> None:
    for day in ("1", "2"):
        numbered(tmp_path / "data" / f"day={day}" / "x.parquet", 10)
    dataset = fb.read_parquet(tmp_path / "data")
    again = _saved(dataset, tmp_path / "snap.json")
    assert again.columns == ["id", "half", "day"]
    assert digest(in_order(again)) == digest(in_order(dataset))


def test_relative_paths_work_from_elsewhere(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    fb.read_parquet("data/*.parquet").snapshot().save("snap.json")
    monkeypatch.chdir("/")
    again = fb.read_snapshot(tmp_path / "snap.json")
    assert again.count() == 700
    assert again.snapshot().refresh().rows == 700


def test_a_dataset_stays_the_same_after_a_change_of_directory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    numbered(elsewhere / "data" / "a.parquet", 9)
    monkeypatch.chdir(folder.parent)
    for uri in ("data", "data/", "data/*.parquet", "./data/a.parquet"):
        dataset = fb.read_parquet(uri)
        before = sorted(r for b in in_order(dataset) for r in b["id"].tolist())
        monkeypatch.chdir(elsewhere)
        assert sorted(r for b in in_order(dataset) for r in b["id"].tolist()) == before
        assert dataset.snapshot().refresh().id == dataset.snapshot().id
        monkeypatch.chdir(folder.parent)


def test_what_is_no_snapshot_is_refused(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "snap.json"
    fb.read_parquet(folder).snapshot().save(path)
    whole = path.read_text()
    document = json.loads(whole)

    def refused(text: str, kind: type[Exception] = fb.CorruptDataError) -> str:
        path.write_text(text)
        with pytest.raises(kind) as error:
            fb.read_snapshot(path)
        assert "snap.json" in str(error.value)
        return str(error.value)

    assert "cut off" in refused(whole[: len(whole) // 2])
    for text in ("", "{}", "[]", '{"a": 1}', "PAR1"):
        refused(text)
    refused(json.dumps({**document, "forebay_snapshot": 9}), fb.UnsupportedError)
    refused(json.dumps({**document, "id": "0" * 32}))
    refused(json.dumps({**document, "rows": 1}))
    refused(json.dumps({**document, "files": []}))
    refused(json.dumps({**document, "footers": document["footers"][:40]}))
    refused(json.dumps({**document, "footers": "?" * 40}))
    for change in ({"footer": 1 << 60}, {"footer": 5}, {"checksum": "x"}, {"footer": None}):
        files = [{**document["files"][0], **change}, *document["files"][1:]]
        refused(json.dumps({**document, "files": files}))
    path.write_bytes((folder / "a.parquet").read_bytes())
    with pytest.raises(fb.CorruptDataError, match="not a snapshot"):
        fb.read_snapshot(path)
    with pytest.raises(fb.NotFoundError, match=r"none\.json"):
        fb.read_snapshot(tmp_path / "none.json")
    with pytest.raises(fb.InvalidInputError, match="give the file that a snapshot was saved to"):
        fb.read_snapshot(tmp_path)
    with pytest.raises(fb.InvalidInputError, match="taken for data"):
        fb.read_parquet(folder).snapshot().save(folder / "a.parquet")
    fb.read_parquet(folder).snapshot().save(path)
    with pytest.raises(fb.CorruptDataError, match="read_snapshot"):
        fb.read_parquet(path)
    with pytest.raises(fb.ForebayError, match=r"(?s)missing.*make its folder first"):
        fb.read_parquet(folder).snapshot().save(tmp_path / "missing" / "snap.json")


@pytest.mark.skipif(not CORPUS, reason="needs the corpus of the shared data")
def test_every_file_of_the_corpus_comes_back(tmp_path: Path) -> None:
    seen = 0
    for path in CORPUS:
        try:
            dataset = fb.read_parquet(path)
        except fb.ForebayError:
            continue
        again = _saved(dataset, tmp_path / "snap.json")
        assert again.snapshot().id == dataset.snapshot().id, path.name
        assert again.columns == dataset.columns, path.name
        assert again.count() == dataset.count(), path.name
        seen += 1
    assert seen > 20


def test_the_command_line(binary: Path, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "snap.json"
    status, said, err = forebay("snapshot", folder, "-o", out, "--json")
    assert status == 0, err
    summary = json.loads(said)
    assert (summary["rows"], summary["files"]) == (700, 2)
    assert summary["id"] == fb.read_snapshot(out).snapshot().id
    numbered(folder / "c.parquet", 50)
    status, said, err = forebay("snapshot", folder, "-o", out, "--since", out)
    assert status == 0, err
    assert "750 rows in 3 files" in said
    job = tmp_path / "job.yaml"
    target = tmp_path / "out"
    job.write_text(f"source: {{ parquet: {{ snapshot: {out} }} }}\nsink: {{ parquet: {target} }}\n")
    assert forebay("run", job)[0] == 0
    assert pq.read_table(target).num_rows == 750
    job.write_text(f"source: {{ parquet: {{ snapshot: {out}, uri: x }} }}\n")
    status, _, err = forebay("explain", job)
    assert status == 2
    assert "both given" in err


@pytest.mark.usefixtures("s3_environment")
def test_on_s3(s3: S3Server, tmp_path: Path) -> None:
    options = {"endpoint": s3.endpoint, "region": "us-east-1"}
    out = io.BytesIO()
    pq.write_table(pa.table({"id": np.arange(100)}), out, row_group_size=25)
    s3.put("data/snap/a.parquet", out.getvalue())
    dataset = fb.read_parquet("s3://data/snap/", **options)
    dataset.snapshot().save("s3://data/kept/snap.json")
    again = fb.read_snapshot("s3://data/kept/snap.json", **options)
    assert again.snapshot().id == dataset.snapshot().id
    # The same files elsewhere have the same id.
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "a.parquet").write_bytes(out.getvalue())
    assert fb.read_parquet(tmp_path / "copy").snapshot().id == again.snapshot().id
    rows = [int(i) for b in in_order(again) for i in b["id"]]
    assert rows == list(range(100))
    out = io.BytesIO()
    pq.write_table(pa.table({"id": np.arange(1, 101)}), out, row_group_size=25)
    s3.put("data/snap/a.parquet", out.getvalue())
    with pytest.raises(fb.ChangedError, match=r"a\.parquet"):
        in_order(again)
    with pytest.raises(fb.NotFoundError, match="none"):
        fb.read_snapshot("s3://data/kept/none.json", **options)
