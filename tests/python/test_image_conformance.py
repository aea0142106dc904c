"""Odd pictures, file by file, against Pillow: mode, size and pixels, or an error from both.

Each file is decoded in full (``quality="exact"``, no operators) and held against what Pillow makes
of it: turned as EXIF or XMP say (``ImageOps.exif_transpose``), then ``convert(mode)``. What differs
is listed here with its reason, and nowhere else; the table in ``docs/images.md`` is this list.
``FOREBAY_BLESS=1`` writes it anew.
"""

from __future__ import annotations

import io
import os
import warnings
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import DATA, ROOT

import forebay as fb

Image = pytest.importorskip("PIL.Image")
ImageOps = pytest.importorskip("PIL.ImageOps")

PICTURES = sorted((DATA / "odd-images").glob("*"))
MODES = ("RGB", "L", "RGBA")
DOCS = ROOT / "docs" / "images.md"
BEGIN, END = "<!-- conformance -->\n", "<!-- /conformance -->\n"
TIFF = {".tif", ".tiff"}


class Deviation(NamedTuple):
    """What becomes of a file, and why."""

    # "refused": Pillow reads it. "read": Pillow refuses it. A number: the greatest difference.
    kind: str | int
    reason: str


RUNS = "runs that go beyond a row or the picture are damage, where Pillow cuts them off"
BITS = "more than 8 bits a sample other than 16-bit gray, RGB and RGBA"
DEVIATIONS = {
    "10ct_32bit_128.tiff": Deviation("refused", "32-bit floats"),
    "12bit.cropped.tif": Deviation("refused", BITS),
    "16_bit_binary_pgm.tiff": Deviation("refused", BITS),
    "bmp__b__badrle.bmp": Deviation("refused", RUNS),
    "bmp__g__rgb16-565.bmp": Deviation(
        1, "5 and 6 bits become 8 by rounding, where Pillow cuts off"
    ),
    "crash-0da013a13571cc8eb457a39fee8db18f8a3c7127.tif": Deviation(
        "refused", "a damaged directory (found by fuzzing Pillow)"
    ),
    "hopper_lzma.tif": Deviation("refused", "LZMA, which few readers know"),
    "hopper_rle8_row_overflow.bmp": Deviation("refused", RUNS),
    "lab-green.tif": Deviation("refused", "the colour space Lab"),
    "png_decompression_dos.png": Deviation(
        "read", "texts beside the picture, which Pillow's limit refuses, are not looked at"
    ),
    "unknown_compression_method.png": Deviation(
        "read", "a text beside the picture is packed in an unknown way; texts are not looked at"
    ),
}
# Of the files that are not TIFF.
MOST_DEVIATIONS = 8


def _pillow(data: bytes, mode: str | None) -> np.ndarray:
    """Decode, turn and convert; ``None`` keeps the mode, as far as Forebay has it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            image = ImageOps.exif_transpose(image)
            pixels = np.asarray(image.convert(mode or _kept(image)))
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _kept(image: Image.Image) -> str:
    if image.mode in ("1", "L", "I", "F") or image.mode.startswith("I;"):
        return "L"
    # One colour of RGB that counts as transparent stays a colour, as in Pillow.
    transparent = image.mode in ("RGBA", "LA", "PA")
    return "RGBA" if transparent or (image.mode == "P" and "transparency" in image.info) else "RGB"


def _forebay(path: Path, mode: str | None) -> np.ndarray:
    dataset = fb.read_parquet(path).map_image(
        "image", [], mode=mode, dtype="uint8", layout="HWC", quality="exact"
    )
    loader = dataset.loader(
        batch_size=1, shuffle="none", epoch_end="partial", format="numpy", num_threads=1
    )
    [batch] = list(loader)
    return np.array(batch["image"][0])


def _outcome(picture: Path, folder: Path) -> str | int | None:
    """``None`` where both say the same, else the kind of a deviation."""
    data = picture.read_bytes()
    path = folder / "one.parquet"
    pq.write_table(pa.table({"image": pa.array([data], pa.binary())}), path)
    worst = 0
    for mode in MODES:
        theirs: np.ndarray | Exception
        try:
            theirs = _pillow(data, mode)
        except Exception as error:
            theirs = error
        try:
            ours = _forebay(path, mode)
        except fb.ForebayError:
            # Pillow reads Lab, and has no way from there to gray.
            if isinstance(theirs, Exception):
                continue
            return "refused"
        if isinstance(theirs, Exception):
            return "read"
        assert ours.shape == theirs.shape, (picture.name, mode)
        worst = max(worst, int(np.abs(ours.astype(int) - theirs.astype(int)).max(initial=0)))
    return worst or None


def _read_by_pillow(data: bytes) -> bool:
    try:
        _pillow(data, "RGB")
    except Exception:
        return False
    return True


@pytest.fixture(scope="module")
def outcomes(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | int | None]:
    folder = tmp_path_factory.mktemp("odd")
    return {picture.name: _outcome(picture, folder) for picture in PICTURES}


def test_as_pillow_or_listed(outcomes: dict[str, str | int | None]) -> None:
    assert len(outcomes) > 150
    found = {name: kind for name, kind in outcomes.items() if kind is not None}
    assert found == {name: deviation.kind for name, deviation in DEVIATIONS.items()}
    others = [name for name in found if Path(name).suffix not in TIFF]
    assert len(others) <= MOST_DEVIATIONS


def test_the_table_in_the_docs(outcomes: dict[str, str | int | None]) -> None:
    text = DOCS.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    expected = before + BEGIN + _table(outcomes) + END + after
    if os.environ.get("FOREBAY_BLESS"):
        DOCS.write_text(expected)
    assert text == expected, "run this test with FOREBAY_BLESS=1"


def _table(outcomes: dict[str, str | int | None]) -> str:
    columns = ("same pixels", "refused by both", "differ", "refused here", "read here alone")
    counts: dict[str, Counter[str]] = {}
    for picture in PICTURES:
        kind = outcomes[picture.name]
        if kind is None:
            column = columns[0] if _read_by_pillow(picture.read_bytes()) else columns[1]
        else:
            column = {"refused": columns[3], "read": columns[4]}.get(str(kind), columns[2])
        suffix = picture.suffix.lower()
        name = {".tif": "TIFF", ".tiff": "TIFF", ".jpg": "JPEG"}.get(suffix, suffix[1:].upper())
        counts.setdefault(name, Counter())[column] += 1
    lines = ["| format | files | " + " | ".join(columns) + " |", "|---|" + "---:|" * 6]
    for name, count in sorted(counts.items()):
        cells = [str(count.total()), *(str(count[c]) for c in columns)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "| file | here | why |", "|---|---|---|"]
    words = {"refused": "refused", "read": "read; Pillow refuses it"}
    for name, (kind, reason) in DEVIATIONS.items():
        shown = words.get(str(kind), f"values differ by at most {kind}")
        lines.append(f"| `{name}` | {shown} | {reason} |")
    return "\n".join([*lines, ""])


@pytest.mark.parametrize("picture", PICTURES, ids=lambda p: p.name)
def test_the_header_says_what_is_decoded(picture: Path, tmp_path: Path) -> None:
    """``image_info`` and the functions of SQL, against the decoded picture."""
    data = picture.read_bytes()
    path = tmp_path / "one.parquet"
    pq.write_table(pa.table({"image": pa.array([data], pa.binary())}), path)
    warnings.simplefilter("ignore")
    try:
        info = fb.image_info(data)
    except fb.ForebayError:
        with pytest.raises(fb.ForebayError):
            _forebay(path, None)
        assert fb.read_parquet(path).filter("image_width(image) IS NOT NULL").count() == 0
        return
    same = (
        f"image_width(image) = {info.width} AND image_height(image) = {info.height} "
        f"AND image_mode(image) = '{info.mode}' AND image_format(image) = '{info.format}'"
    )
    assert fb.read_parquet(path).filter(same).count() == 1
    try:
        height, width, channels = _forebay(path, None).shape
    except fb.ForebayError:
        return
    assert (width, height) == (info.width, info.height)
    assert channels == {"L": 1, "RGB": 3, "RGBA": 4}[info.mode]
    if DEVIATIONS.get(picture.name, Deviation(0, "")).kind != "read":
        assert _pillow(data, None).shape == (height, width, channels)
        with Image.open(io.BytesIO(data)) as image:
            assert image.format in (info.format, "MPO")


def test_jobs_filter_by_size_without_decoding(tmp_path: Path) -> None:
    def picture(width: int, height: int, mode: str = "RGB", kind: str = "JPEG") -> bytes:
        out = io.BytesIO()
        Image.new(mode, (width, height)).save(out, kind)
        return out.getvalue()

    # The second is damaged behind its header: a filter does not see that.
    small, large, gray = picture(10, 20), picture(300, 200), picture(300, 400, "L", "PNG")
    rows = [small, large[: len(large) // 2], gray, None, b"no picture"]
    path = tmp_path / "pictures.parquet"
    pq.write_table(pa.table({"image": pa.array(rows, pa.binary()), "id": range(5)}), path)
    ds = fb.read_parquet(path)

    def ids(condition: str) -> list[int]:
        out = tmp_path / f"out{abs(hash(condition))}"
        ds.filter(condition).select(["id"]).write_parquet(out)
        return pq.read_table(out)["id"].to_pylist()

    assert ids("image_width(image) >= 100 AND image_height(image) >= 100") == [1, 2]
    assert ids("image_mode(image) = 'L'") == [2]
    assert ids("image_format(image) IN ('JPEG', 'WEBP')") == [0, 1]
    assert ids("image_width(image) IS NULL") == [3, 4]
    sized = ds.with_column("pixels", "image_width(image) * image_height(image)").drop(["image"])
    sized.write_parquet(tmp_path / "sized")
    pixels = pq.read_table(tmp_path / "sized")["pixels"].to_pylist()
    assert pixels == [200, 60_000, 120_000, None, None]
    with pytest.raises(fb.InvalidInputError, match="image_width"):
        ds.filter("image_width(id) > 3")


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        ("photo.jpg", TypeError, "takes the bytes of a picture, not str: open the file"),
        (None, TypeError, "not NoneType"),
        (b"", fb.CorruptDataError, "0 bytes"),
        (b"text named .jpg", fb.CorruptDataError, "not"),
        (b"\xff\xd8\xff", fb.CorruptDataError, "JPEG"),
        (b"II*\0\x08\0\0\0", fb.CorruptDataError, "TIFF"),
    ],
)
def test_image_info_of_what_is_none(data: object, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        fb.image_info(data)


def test_image_info_of_bytes_of_all_kinds() -> None:
    out = io.BytesIO()
    Image.new("RGBA", (3, 2)).save(out, "PNG")
    expected = fb.ImageInfo(width=3, height=2, mode="RGBA", format="PNG")
    for kind in (bytes, bytearray, memoryview):
        assert fb.image_info(kind(out.getvalue())) == expected
