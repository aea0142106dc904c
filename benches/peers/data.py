"""The data of the benchmarks: made once from the shared files, kept outside version control.

Promise: a data set is complete or absent. Each is written under a temporary name and renamed, so an
interrupted run never leaves half a file that a later run would measure. The recipe is hashed into the
folder's name: a changed recipe is a new folder, never a stale one.

Every set has a small twin for the warm-up pass (and for `--quick`), written with the same settings.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PHOTOS = 4_000
PHOTOS_WARM = 200
PHOTO_ROW_GROUP = 100
FLIGHT_FILES = 8
FLIGHTS_PER_FILE = 1_350_000
FLIGHTS_WARM = 270_000
FLIGHT_ROW_GROUP = 131_072
COLUMNS = ["dep_time", "dep_delay", "arr_delay", "air_time", "distance", "hour", "minute"]
MEMORY_FILE_ROWS = 1_000_000
MDS_RECIPE = "1"
RECIPE = "2"


@dataclass(frozen=True)
class Source:
    """One measured data set: where it is and how many rows a full epoch must deliver."""

    path: str
    rows: int

    def files(self) -> list[str]:
        """Return the Parquet files in reading order."""
        path = Path(self.path)
        return [str(path)] if path.is_file() else [str(p) for p in sorted(path.glob("*.parquet"))]

    def to_json(self) -> dict[str, object]:
        """Return what `from_json` reads."""
        return asdict(self)

    @staticmethod
    def from_json(value: dict[str, object]) -> Source:
        """Rebuild a source in a measuring process."""
        return Source(str(value["path"]), int(str(value["rows"])))


def shared_data() -> Path:
    """Return the folder of real files, or exit and say how to name it."""
    named = os.environ.get("FOREBAY_TEST_DATA")
    path = Path(named) if named else ROOT.parent / "shared" / "data"
    if not (path / "photos").is_dir() or not (path / "flights").is_dir():
        raise SystemExit(f"error: no photos/ and flights/ in {path}; set FOREBAY_TEST_DATA to the folder that has them")
    return path


def cache_folder(chosen: str | None) -> Path:
    """Return the folder for the generated sets; by default under `target/`, which git ignores."""
    base = Path(chosen) if chosen else ROOT / "target" / "bench-data"
    base.mkdir(parents=True, exist_ok=True)
    return base.resolve()


def photographs(cache: Path, rows: int) -> Source:
    """The photographs, repeated in file-name order to `rows` rows, in one Parquet file.

    Columns: image (binary, the JPEG file's own bytes), label (int64, rank of the file name), name.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    target = cache / f"photos-{_recipe('photos', rows)}.parquet"
    if not target.exists():
        files = sorted((shared_data() / "photos").glob("*.JPEG"))
        once = pa.table(
            {
                "image": pa.array([f.read_bytes() for f in files], pa.binary()),
                "label": pa.array(range(len(files)), pa.int64()),
                "name": pa.array([f.name for f in files], pa.string()),
            }
        )
        whole, rest = divmod(rows, len(files))
        table = pa.concat_tables([once] * whole + [once.slice(0, rest)])
        with Staged(target) as staged:
            pq.write_table(table, staged, row_group_size=PHOTO_ROW_GROUP)
    return Source(str(target), rows)


def flights(cache: Path, files: int, rows_per_file: int) -> Source:
    """The flights, repeated end to end over `files` files of `rows_per_file` rows, all 19 columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    target = cache / f"flights-{_recipe('flights', files, rows_per_file)}"
    if not target.is_dir():
        once = pa.concat_tables([pq.read_table(p) for p in sorted((shared_data() / "flights").glob("*.parquet"))])
        once = once.replace_schema_metadata(None)
        with Staged(target) as staged:
            staged.mkdir()
            for index in range(files):
                pq.write_table(
                    _repeated(once, index * rows_per_file, rows_per_file),
                    staged / f"part-{index:02}.parquet",
                    row_group_size=FLIGHT_ROW_GROUP,
                    compression="zstd",
                )
    return Source(str(target), files * rows_per_file)


def mds(cache: Path, what: str, source: Source, python: str, workers: int) -> Source:
    """The rows of a Parquet set in MosaicML's format, made by its own writer in the environment that has it."""
    target = cache / f"mds-{Path(source.path).stem}-{_recipe('mds', what, MDS_RECIPE)}"
    if not target.is_dir():
        with Staged(target) as staged:
            staged.mkdir()
            program = str(Path(__file__).with_name("mds.py"))
            subprocess.run([python, program, what, source.path, str(staged), str(workers)], check=True)
    return Source(str(target), source.rows)


def warm_page_cache(source: Source) -> None:
    """Read every byte once, so that no measurement pays for the disk and none is favoured by its turn."""
    warm_files(source.files())


def warm_folder(folder: Path) -> None:
    """As `warm_page_cache`, for whatever lies below a folder."""
    warm_files(str(p) for p in sorted(folder.rglob("*")) if p.is_file())


def warm_files(names: Iterable[str]) -> None:
    """Read files once."""
    for name in names:
        with open(name, "rb", buffering=0) as file:
            while file.read(1 << 22):
                pass


def _repeated(once, start: int, rows: int):
    """Rows [start, start + rows) of the endless repetition of `once`."""
    import pyarrow as pa

    pieces, at, left = [], start % once.num_rows, rows
    while left:
        piece = once.slice(at, min(left, once.num_rows - at))
        pieces.append(piece)
        left, at = left - piece.num_rows, 0
    return pa.concat_tables(pieces)


def _recipe(*parts: object) -> str:
    """A readable name with a short hash of everything that shapes the bytes."""
    import pyarrow as pa

    text = repr((RECIPE, pa.__version__, PHOTO_ROW_GROUP, FLIGHT_ROW_GROUP, parts))
    return "-".join(str(p) for p in parts[1:]) + "-" + hashlib.sha256(text.encode()).hexdigest()[:8]


class Staged:
    """A path to write under that takes its final name only when the block ends well."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __enter__(self) -> Path:
        self.folder = Path(tempfile.mkdtemp(prefix=".making-", dir=self.target.parent))
        return self.folder / self.target.name

    def __exit__(self, kind, value, trace) -> None:
        if kind is None:
            os.rename(self.folder / self.target.name, self.target)
        shutil.rmtree(self.folder, ignore_errors=True)
