"""Every file of apache/parquet-testing: the same data as pyarrow reads, or one clear error."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import DATA, forebay

import forebay as fb

GOOD = sorted((DATA / "parquet-testing" / "data").glob("*.parquet"))
BAD = sorted((DATA / "parquet-testing" / "bad_data").glob("*.parquet"))

# Checksums wrong on purpose; a list where the format has a number.
REFUSED = {"datapage_v1-corrupt-checksum.parquet", "dict-page-offset-zero.parquet"}
# Microseconds, as the README of the corpus has them; pyarrow overflows on the last (290000).
FAR = {
    "int96_from_spark.parquet": [
        1704141296123456,
        1704070800000000,
        253402225200000000,
        1735599600000000,
        None,
        9089380393200000000,
    ]
}
# 2 GiB of strings: `test_rows_and_types` has that case, with less work for pyarrow.
LARGE = {"large_string_map.brotli.parquet"}


def test_the_corpus_is_there(data: Path) -> None:
    assert len(GOOD) > 30
    assert len(BAD) >= 5


def _read(path: Path) -> pa.Table:
    dataset = fb.read_parquet(path)
    loader = dataset.loader(1000, shuffle="none", format="arrow")
    batches = [pa.record_batch(batch) for batch in loader]
    return pa.Table.from_batches(batches) if batches else pa.schema(dataset.schema).empty_table()


def _text(table: pa.Table) -> list[str]:
    """Every value as text: NaN is equal to itself there, and -0.0 is not 0.0."""
    if table.num_columns == 0:
        return []
    return [c.combine_chunks().to_string(window=1_000_000) for c in table.columns]


@pytest.mark.parametrize("path", [p for p in GOOD if p.name not in LARGE], ids=lambda p: p.name)
def test_good_files(path: Path) -> None:
    if path.name in REFUSED:
        with pytest.raises((fb.CorruptDataError, fb.UnsupportedError), match=path.name):
            _read(path)
        return
    ours = _read(path)
    assert ours.num_rows == fb.read_parquet(path).count()
    if path.name in FAR:
        assert ours.column(0).type.unit == "us"
        assert ours.column(0).cast(pa.int64()).to_pylist() == FAR[path.name]
        return
    try:
        # Microseconds reach the years that INT96 reaches; nanoseconds silently do not.
        theirs = pq.read_table(path, coerce_int96_timestamp_unit="us")
    except (pa.ArrowException, OSError, ValueError):
        return  # pyarrow has no opinion
    assert ours.column_names == theirs.column_names
    # Units and names inside of lists and maps are each reader's choice, as long as the values fit.
    assert _text(ours) == _text(theirs.cast(ours.schema))


@pytest.mark.parametrize("path", [p for p in GOOD if p.name not in LARGE], ids=lambda p: p.name)
def test_good_files_are_written_again(path: Path, tmp_path: Path) -> None:
    if path.name in REFUSED:
        return
    dataset = fb.read_parquet(path)
    dataset.write_parquet(tmp_path / "out")
    assert fb.read_parquet(tmp_path / "out").count() == dataset.count()
    again = _read(tmp_path / "out")
    assert again.schema.types == _read(path).schema.types
    assert _text(again) == _text(_read(path))


@pytest.mark.parametrize("path", BAD, ids=lambda p: p.name)
def test_bad_files(path: Path, tmp_path: Path) -> None:
    with pytest.raises(fb.ForebayError, match=path.name) as caught:
        _read(path)
    assert isinstance(caught.value, (fb.CorruptDataError, fb.UnsupportedError))
    with pytest.raises(fb.ForebayError, match=path.name):
        fb.read_parquet(path).write_parquet(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("path", BAD, ids=lambda p: p.name)
def test_bad_files_on_the_command_line(path: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"source: {{ parquet: {path} }}\nsink: {{ parquet: {tmp_path}/out }}\n")
    status, printed, err = forebay("run", job)
    assert (status, printed) == (1, "")
    assert path.name in err
    assert "panicked" not in err
    assert len(err.splitlines()) <= 12
    assert not (tmp_path / "out").exists()
