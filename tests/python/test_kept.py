"""What is kept in files: the rows that pass a filter, the rows of a full shuffle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support import digest, forebay, ids, numbered, until, write

import forebay as fb

ROWS = 5_000


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A snapshot beside two files of numbers, texts and lists."""
    for part in range(2):
        first = part * ROWS // 2
        rows = range(first, first + ROWS // 2)
        columns: dict[str, Any] = {
            "id": list(rows),
            "half": [i * 0.5 for i in rows],
            "name": [None if i % 7 == 0 else f"row {i} " * (i % 41) for i in rows],
            "parts": [list(range(i % 4)) for i in rows],
        }
        write(tmp_path / "data" / f"{part}.parquet", columns, row_group_size=500)
    fb.read_parquet(tmp_path / "data").snapshot().save(tmp_path / "snap.json")
    return tmp_path / "snap.json"


def _names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.is_file())


def _kept(folder: Path, ending: str) -> Path:
    found = [p for p in folder.iterdir() if p.name.endswith(ending)]
    assert len(found) == 1, _names(folder)
    return found[0]


# The rows that pass a filter.


def test_a_filter_is_evaluated_once_for_a_snapshot(saved: Path) -> None:
    filtered = fb.read_snapshot(saved).filter("id % 3 = 1 AND name IS NOT NULL")
    expected = [i for i in range(ROWS) if i % 3 == 1 and i % 7]
    options = {"shuffle": "none", "format": "numpy", "lists": "ragged"}
    assert ids(filtered.loader(16, **options)) == expected
    kept = _kept(saved.parent, ".rows")
    assert kept.name.startswith("snap.json.")
    before = kept.stat()
    again = fb.read_snapshot(saved).filter("id % 3 = 1 AND name IS NOT NULL")
    loader = again.select(["id"]).loader(16, shuffle="none", format="numpy")
    # Making the loader has read nothing of the data.
    assert loader.stats()["bytes_read"] == 0
    assert ids(loader) == expected
    assert again.count() == len(expected)
    assert kept.stat().st_ino == before.st_ino
    # Another filter has a file of its own, and no lock or half-written file stays.
    assert fb.read_snapshot(saved).filter("id < 10").count() == 10
    assert len(_names(saved.parent)) == 3


def test_the_order_is_the_same_with_and_without_the_file(saved: Path) -> None:
    def hashed() -> str:
        filtered = fb.read_snapshot(saved).filter("half > 100 OR id % 2 = 0").select(["half", "id"])
        return digest(filtered.loader(32, seed=5, lanes=4, window=2, format="numpy"))

    made, read = hashed(), hashed()
    direct = fb.read_parquet(saved.parent / "data").filter("half > 100 OR id % 2 = 0")
    direct = direct.select(["half", "id"])
    assert digest(direct.loader(32, seed=5, lanes=4, window=2, format="numpy")) == made == read


def test_a_damaged_file_is_made_again(saved: Path) -> None:
    def count() -> int:
        return fb.read_snapshot(saved).filter("id % 2 = 0").count()

    assert count() == ROWS // 2
    kept = _kept(saved.parent, ".rows")
    whole = kept.read_bytes()
    other_end = whole[:-20] + b"?" * 20
    for damage in [b"", whole[:-1], whole[: len(whole) // 2], b"x" * len(whole), other_end]:
        kept.write_bytes(damage)
        assert count() == ROWS // 2
        assert kept.read_bytes() == whole


def test_a_file_that_is_damaged_in_use_is_an_error_that_names_it(saved: Path) -> None:
    loader = fb.read_snapshot(saved).filter("id % 2 = 0").loader(16, shuffle="none")
    kept = _kept(saved.parent, ".rows")
    with kept.open("r+b") as file:
        file.truncate(10)
    with pytest.raises(fb.CorruptDataError, match=r"(?s)\.rows.*was removed") as caught:
        list(loader)
    assert str(kept) in str(caught.value)


def test_files_written_anew_with_the_same_footer_are_filtered_anew(tmp_path: Path) -> None:
    def make(values: np.ndarray) -> int:
        options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
        write(tmp_path / "data" / "a.parquet", {"x": values}, **options)
        dataset = fb.read_parquet(tmp_path / "data")
        dataset.snapshot().save(tmp_path / "snap.json")
        return fb.read_snapshot(tmp_path / "snap.json").filter("x > 50").count()

    assert make(np.arange(100)) == 49
    os.utime(tmp_path / "data" / "a.parquet", (1, 1))
    assert make(np.arange(100) + 50) == 99


def test_small_filters_leave_nothing_in_the_cache_folder(tmp_path: Path, cache: Path) -> None:
    path = numbered(tmp_path / "a.parquet", 1000)
    assert fb.read_parquet(path).filter("id < 10").count() == 10
    assert _names(cache) == []


def test_large_filters_are_kept_in_the_cache_folder(tmp_path: Path, cache: Path) -> None:
    rows = 3_000_000
    values = np.random.default_rng(0).random(rows)
    path = write(tmp_path / "a.parquet", {"x": values}, row_group_size=100_000)
    expected = int((values < 0.25).sum())
    assert fb.read_parquet(path).filter("x < 0.25").count() == expected
    kept = _kept(cache, ".rows")
    loader = fb.read_parquet(path).filter("x < 0.25").loader(4096, epoch_end="partial")
    assert loader.rows == expected
    assert loader.stats()["bytes_read"] == 0
    # One bit for each row at most, and in memory a few bytes for each block.
    assert kept.stat().st_size < rows / 8 + 4096
    assert loader.stats()["memory_used"] < 64 << 10
    # A folder that cannot be written is done without.
    assert _in_child(
        "print(fb.read_parquet(sys.argv[1]).filter('x < 0.25').count())", path, cache="/proc/none"
    ) == str(expected)


def _in_child(code: str, *arguments: str, cache: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, forebay as fb\n{code}", *arguments],
        env=os.environ | {"FOREBAY_CACHE_DIR": cache},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


# The rows of a full shuffle.


@pytest.fixture
def wide(tmp_path: Path) -> str:
    """4 MiB of rows: more than a quarter of a memory limit of 8 MiB."""
    columns = {"id": np.arange(20_000)}
    columns |= {f"x{j}": np.random.default_rng(j).random(20_000) for j in range(24)}
    return write(tmp_path / "wide.parquet", columns, row_group_size=1_500)


STACKED = {"shuffle": "full", "seed": 3, "format": "numpy", "epoch_end": "partial"}


def test_rows_in_a_file_come_in_the_order_of_rows_in_memory(wide: str, cache: Path) -> None:
    dataset = fb.read_parquet(wide)
    in_memory = digest(dataset.loader(64, **STACKED))
    assert _names(cache) == []
    loader = dataset.loader(64, memory_limit="8MiB", **STACKED)
    assert digest(loader) == in_memory
    kept = _kept(cache, ".store")
    assert kept.stat().st_mode & 0o077 == 0
    assert loader.stats()["memory_peak"] < 8 << 20
    # The second epoch, another loader and other threads find it there.
    second = digest(loader)
    made = kept.stat().st_ino
    other = dataset.loader(64, memory_limit="8MiB", num_threads=1, prefetch=1, **STACKED)
    assert digest(other) == in_memory
    assert other.stats()["bytes_read"] == 0
    assert digest(other) == second != in_memory
    assert kept.stat().st_ino == made


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_share_one_file(wide: str, cache: Path, world_size: int) -> None:
    options = {"memory_limit": "8MiB", "global_batch_size": 64, **STACKED}
    one = [b["id"].tolist() for b in fb.read_parquet(wide).loader(**options)]
    ranks = [
        fb.read_parquet(wide).loader(rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]
    steps = zip(*ranks, strict=True)
    assert [[i for part in step for i in part["id"].tolist()] for step in steps] == one
    assert len(_names(cache)) == 1


def test_texts_lists_and_filtered_rows_in_a_file(saved: Path, cache: Path) -> None:
    dataset = fb.read_snapshot(saved).filter("id % 3 <> 0")
    options = {"shuffle": "full", "seed": 1, "epoch_end": "pad", "lists": "ragged"}
    in_memory = list(dataset.loader(32, **options))
    # Small enough that the rows cannot be kept in it, large enough for the blocks.
    in_file = list(dataset.loader(32, memory_limit="1MiB", **options))
    _kept(cache, ".store")
    assert len(in_file) == len(in_memory)
    for mine, other in zip(in_file, in_memory, strict=True):
        assert mine["id"].tolist() == other["id"].tolist()
        assert mine["name"] == other["name"]
        assert mine["parts"].values.tolist() == other["parts"].values.tolist()
        assert mine["parts"].offsets.tolist() == other["parts"].offsets.tolist()
        assert mine["_repeat"].tolist() == other["_repeat"].tolist()
    arrow = dataset.loader(32, memory_limit="1MiB", **(options | {"format": "arrow"}))
    assert len(list(arrow)) == len(in_memory)


def test_photographs_in_a_file(photographs: str, cache: Path) -> None:
    dataset = fb.read_parquet(photographs).map_image(
        "image",
        [fb.RandomResizedCrop(32), fb.RandomHorizontalFlip()],
        mode="RGB",
        dtype="uint8",
    )
    options = {"shuffle": "full", "seed": 5, "format": "numpy"}
    in_memory = digest(dataset.loader(16, **options))
    assert _names(cache) == []
    assert digest(dataset.loader(16, memory_limit="48MiB", **options)) == in_memory
    _kept(cache, ".store")


def test_a_row_that_cannot_be_decoded_is_named(tmp_path: Path, cache: Path) -> None:
    images = [os.urandom(9_000) for _ in range(300)]
    path = write(tmp_path / "a.parquet", {"image": images}, row_group_size=50)
    dataset = fb.read_parquet(path).map_image("image", [fb.Resize(8)])
    errors = []
    for options in [{}, {"memory_limit": "4MiB"}]:
        with pytest.raises(fb.ForebayError) as caught:
            list(dataset.loader(8, shuffle="full", seed=2, **options))
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert "row" in errors[0]
    _kept(cache, ".store")


def test_a_damaged_store_is_made_again_or_named(wide: str, cache: Path) -> None:
    dataset = fb.read_parquet(wide)
    options = {"memory_limit": "8MiB", **STACKED}
    expected = digest(dataset.loader(64, **options))
    kept = _kept(cache, ".store")
    whole = kept.read_bytes()
    kept.write_bytes(whole[: len(whole) // 3])
    assert digest(dataset.loader(64, **options)) == expected
    # A flipped bit within a row: not delivered.
    broken = bytearray(whole)
    broken[len(broken) // 2] ^= 1
    kept.write_bytes(bytes(broken))
    with pytest.raises(fb.CorruptDataError, match="was removed"):
        list(dataset.loader(64, **options))
    assert not kept.exists()
    assert digest(dataset.loader(64, **options)) == expected


def test_a_full_disk_is_named_with_the_way_out(wide: str, tmp_path: Path) -> None:
    """A file system of 1 MiB, where this machine lets a test have one."""
    small = tmp_path / "small"
    small.mkdir()
    code = 'fb.read_parquet(sys.argv[1]).loader(64, shuffle="full", memory_limit="8MiB")'
    script = (
        f"mount -t tmpfs -o size=1m none {small} && FOREBAY_CACHE_DIR={small} "
        f"exec {sys.executable} -c 'import sys, forebay as fb\nlist({code})' {wide}"
    )
    done = subprocess.run(
        ["unshare", "-rm", "bash", "-c", script], capture_output=True, text=True, check=False
    )
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip("no mount namespaces here")
    assert done.returncode == 1
    assert "has no room for" in done.stderr, done.stderr
    assert "FOREBAY_CACHE_DIR" in done.stderr


def test_no_cache_folder_is_an_error_with_the_size(wide: str) -> None:
    code = (
        "try: fb.read_parquet(sys.argv[1]).loader(64, shuffle='full', memory_limit='8MiB')\n"
        "except fb.ForebayError as e: print(e)"
    )
    message = _in_child(code, wide, cache="/proc/none")
    assert "3.8 MiB" in message, message
    assert "FOREBAY_CACHE_DIR" in message


def test_a_killed_builder_is_in_nobodys_way(wide: str, cache: Path) -> None:
    code = (
        "ds = fb.read_parquet(sys.argv[1])\n"
        "for b in ds.loader(64, shuffle='full', memory_limit='8MiB', seed=3, num_threads=1): pass"
    )
    expected = digest(fb.read_parquet(wide).loader(64, **STACKED))
    arguments = [sys.executable, "-c", f"import sys, forebay as fb\n{code}", wide]
    child = subprocess.Popen(arguments)
    end = time.monotonic() + 60
    while not list(cache.iterdir()) and time.monotonic() < end:
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert digest(fb.read_parquet(wide).loader(64, memory_limit="8MiB", **STACKED)) == expected
    assert [name for name in _names(cache) if not name.endswith(".store")] == []


def test_leaving_early_leaves_no_half_file(wide: str, cache: Path) -> None:
    for _ in range(5):
        batches = iter(fb.read_parquet(wide).loader(64, memory_limit="8MiB", **STACKED))
        del batches
    # File work that has begun runs to its end, and then lets go.
    until(
        lambda: [name for name in _names(cache) if not name.endswith(".store")] == [],
        "no lock and no half file",
    )
    batches = iter(fb.read_parquet(wide).loader(64, memory_limit="8MiB", **STACKED))
    next(batches)
    del batches
    assert len(_names(cache)) == 1


# What it costs that ranks share lanes.


def test_read_amplification_is_told_once(tmp_path: Path) -> None:
    path = numbered(tmp_path / "a.parquet", 4_800)
    code = (
        "import json\n"
        "ds = fb.read_parquet(sys.argv[1])\n"
        "def amplified(**options):\n"
        "    loader = ds.loader(global_batch_size=48, format='numpy', **options)\n"
        "    for _ in range(2):\n"
        "        for b in loader: pass\n"
        "    return loader.stats()['read_amplification']\n"
        "print(json.dumps([\n"
        "    amplified(rank=1, world_size=4),\n"
        "    amplified(rank=1, world_size=4, lanes=4, window=1),\n"
        "    amplified(rank=0, world_size=1),\n"
        "    amplified(rank=0, world_size=3, lanes=4, window=1),\n"
        "    amplified(rank=0, world_size=2, shuffle='none'),\n"
        "]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, forebay as fb\n{code}", path],
        capture_output=True,
        text=True,
        check=True,
    )
    shared, own, one, odd, files = json.loads(done.stdout)
    assert (shared, own, one, files) == (4.0, 1.0, 1.0, 2.0)
    assert 1.4 < odd < 1.8
    notices = [line for line in done.stderr.splitlines() if "lanes=" in line]
    assert len(notices) == 2, done.stderr
    assert "4 ranks share one lane" in notices[0]
    assert "lanes=4" in notices[0]
    assert "3 ranks share 4 lanes" in notices[1]
    assert "lanes=6" in notices[1]


# Pages of files without a page index.


def test_pages_are_found_once_and_make_blocks(tmp_path: Path) -> None:
    rows = 400_000
    columns = {f"x{j}": np.random.default_rng(j).random(rows) for j in range(12)}
    columns["id"] = np.arange(rows)
    path = write(tmp_path / "data" / "a.parquet", columns, row_group_size=rows)
    dataset = fb.read_parquet(path)
    plain, indexed = dataset.snapshot(), dataset.snapshot(index_pages=True)
    assert (plain.blocks, indexed.blocks) == (1, 5)
    assert plain.id != indexed.id
    indexed.save(tmp_path / "snap.json")
    again = fb.read_snapshot(tmp_path / "snap.json")
    assert again.snapshot().id == indexed.id
    # A writer that gives its files a page index makes the same blocks.
    other = write(tmp_path / "other.parquet", columns, row_group_size=rows, write_page_index=True)
    assert fb.read_parquet(other).snapshot().blocks == 5
    loader = again.loader(1_000, seed=1, lanes=2, window=1, format="numpy")
    seen = [(batch["id"], batch["x3"]) for batch in loader]
    order = np.concatenate([i for i, _ in seen])
    assert sorted(order.tolist()) == list(range(rows))
    assert (np.concatenate([x for _, x in seen]) == columns["x3"][order]).all()
    assert (again.filter("id BETWEEN 5 AND 7").count()) == 3


def test_pages_are_found_in_a_bucket(tmp_path: Path, s3_environment: Any) -> None:
    rows = 300_000
    columns = {f"x{j}": np.random.default_rng(j).random(rows) for j in range(8)}
    local = write(tmp_path / "a.parquet", columns, row_group_size=rows)
    s3_environment.put("data/pages/a.parquet", Path(local).read_bytes())
    remote = fb.read_parquet("s3://data/pages/").snapshot(index_pages=True)
    here = fb.read_parquet(local).snapshot(index_pages=True)
    assert remote.blocks == here.blocks == 3
    assert remote.id == here.id


def test_lists_do_not_say_where_rows_begin(tmp_path: Path) -> None:
    columns = {"id": list(range(1_000)), "l": [[i] * (i % 3) for i in range(1_000)]}
    path = write(tmp_path / "a.parquet", columns)
    code = "print(fb.read_parquet(sys.argv[1]).snapshot(index_pages=True).blocks)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, forebay as fb\n{code}", path],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "1"
    assert "write them again with a page index" in done.stderr
    # Version 2 of data pages says it.
    path = write(tmp_path / "b.parquet", columns, data_page_version="2.0")
    assert fb.read_parquet(path).snapshot(index_pages=True).rows == 1_000


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_damaged_page_headers_are_errors(tmp_path: Path, version: str) -> None:
    columns = {"x": np.arange(1_000)}
    path = tmp_path / "a.parquet"
    options = {"data_page_version": version, "use_dictionary": False}
    write(path, columns, **options)
    whole = path.read_bytes()
    start = pq.ParquetFile(path).metadata.row_group(0).column(0).data_page_offset
    for at in range(start, start + 24):
        for flip in (0x01, 0x04, 0x06, 0x40, 0xFF):
            broken = bytearray(whole)
            broken[at] ^= flip
            path.write_bytes(bytes(broken))
            told = _kind_of_error(path)
            assert told != "internal", (at, flip)


def _kind_of_error(path: Path) -> str | None:
    try:
        fb.read_parquet(path).snapshot(index_pages=True)
    except fb.ForebayError as error:
        return error.kind
    return None


def test_index_pages_on_the_command_line(tmp_path: Path, binary: Path) -> None:
    path = numbered(tmp_path / "a.parquet", 2_000_000, row_group=2_000_000)
    target = tmp_path / "snap.json"
    code, out, err = forebay("snapshot", path, "-o", str(target), "--index-pages", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["id"] == fb.read_snapshot(target).snapshot().id
    assert told["id"] != fb.read_parquet(path).snapshot().id


def test_index_pages_is_true_or_false(tmp_path: Path) -> None:
    dataset = fb.read_parquet(numbered(tmp_path / "a.parquet", 10))
    with pytest.raises(TypeError, match="True or False"):
        dataset.snapshot(index_pages=1)  # type: ignore[arg-type]
