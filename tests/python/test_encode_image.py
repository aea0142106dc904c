"""`encode_image`: pictures written back by jobs, beside what Pillow writes of the same pixels."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from support import data_files, forebay, write

import forebay as fb

MODES = ["L", "RGB", "RGBA"]

# Two releases of libjpeg-turbo may round one step differently; the same one does not.
JPEG_TOLERANCE = 2


def _scene(width: int, height: int, mode: str, seed: int = 0) -> Image.Image:
    """Smooth slopes with some noise and edges, as photographs have; opacity from none to full."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / (5 + 3 * c) + seed) + np.cos(y / (4 + 2 * c)) for c in range(4)]
    pixels = np.stack(waves, axis=-1) * 60 + 128 + random.normal(0, 6, (height, width, 4))
    pixels[height // 3 : height // 2, width // 4 : width // 2] = 250
    pixels[: height // 5, : width // 5, 3] = 0
    whole = Image.fromarray(pixels.clip(0, 255).astype(np.uint8), "RGBA")
    return whole if mode == "RGBA" else whole.convert("RGB").convert(mode)


def _file(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def _open(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def _dataset(path: Path, values: Iterable[bytes | None], **options: Any) -> fb.Dataset:
    values = list(values)
    columns = {"image": pa.array(values, pa.binary()), "id": list(range(len(values)))}
    return fb.read_parquet(write(path, columns, **options))


def _rows(folder: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(f) for f in data_files(folder))


def _encode(
    tmp: Path, values: Iterable[bytes | None], *ops: fb.ImageOp, **options: Any
) -> pa.Table:
    """What a job writes of these values."""
    dataset = _dataset(tmp / "in.parquet", values)
    dataset.map_image("image", ops, **options).write_parquet(tmp / "out", mode="overwrite")
    return _rows(tmp / "out")


def _images(table: pa.Table) -> list[Image.Image]:
    return [_open(value) for value in table["image"].to_pylist()]


SIZES = [(1, 1), (3, 2), (17, 33), (64, 48), (160, 90)]


@pytest.mark.parametrize("mode", MODES)
def test_png_is_exact(tmp_path: Path, mode: str) -> None:
    """Every mode and level, and mixed sizes: the very pixels."""
    slope = Image.fromarray(np.tile(np.arange(256, dtype=np.uint8), (64, 1))).convert(mode)
    pictures = [slope, *(_scene(w, h, mode, w) for w, h in SIZES)]
    lengths = []
    for level in (0, 1, 6, 9):
        op = fb.encode_image("PNG", compress_level=level)
        table = _encode(tmp_path, map(_file, pictures), op)
        assert table.schema.field("image").type == pa.binary()
        for want, got in zip(pictures, _images(table), strict=True):
            assert (got.format, got.mode) == ("PNG", mode)
            np.testing.assert_array_equal(np.asarray(want), np.asarray(got))
        lengths.append([len(value) for value in table["image"].to_pylist()])
    assert lengths[0][0] > 5 * lengths[1][0] >= 5 * lengths[3][0]
    assert sum(lengths[2]) < 1.1 * sum(len(_file(picture)) for picture in pictures)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_lossless_webp_is_exact(tmp_path: Path, mode: str, exact: bool) -> None:
    pictures = [_scene(w, h, mode, w) for w, h in SIZES]
    op = fb.encode_image("WEBP", lossless=True, exact=exact)
    for want, got in zip(
        pictures, _images(_encode(tmp_path, map(_file, pictures), op)), strict=True
    ):
        # WebP has no gray, and Pillow reads a picture without any transparency as RGB.
        same = _open(_file(want, "WEBP", lossless=True, exact=exact))
        assert (got.format, got.mode) == ("WEBP", same.mode)
        np.testing.assert_array_equal(np.asarray(same), np.asarray(got))
        if exact or mode != "RGBA":
            back = np.asarray(got.convert(want.mode))
            np.testing.assert_array_equal(np.asarray(want), back)


@pytest.mark.parametrize("mode", MODES)
def test_lossy_webp_is_pillows(tmp_path: Path, mode: str) -> None:
    """Same library, same settings: the same pixels, where both are of the same release."""
    pictures = [_scene(w, h, mode, w) for w, h in SIZES]
    for options in ({}, {"quality": 30}, {"quality": 100, "method": 0}, {"method": 6}):
        table = _encode(tmp_path, map(_file, pictures), fb.encode_image("webp", **options))
        for want, got in zip(pictures, _images(table), strict=True):
            same = _open(_file(want, "WEBP", **options))
            assert got.mode == same.mode
            far = np.abs(np.asarray(same).astype(int) - np.asarray(got).astype(int))
            assert far.max() <= 2, (options, want.size, far.max())


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_jpeg_is_pillows(tmp_path: Path, mode: str) -> None:
    """Every parameter, on mixed sizes; the tolerance is for another release of libjpeg-turbo."""
    pictures = [_scene(w, h, mode, w) for w, h in SIZES]
    for options in (
        {},
        {"quality": 1},
        {"quality": 90},
        {"quality": 100},
        {"quality": 90, "subsampling": "4:4:4"},
        {"quality": 90, "subsampling": "4:2:2"},
        {"quality": 60, "progressive": True},
        {"quality": 60, "optimize": True},
    ):
        table = _encode(tmp_path, map(_file, pictures), fb.encode_image("JPEG", **options))
        files = table["image"].to_pylist()
        for want, file in zip(pictures, files, strict=True):
            mine, theirs = _file(want, "JPEG", **options), file
            same, got = _open(mine), _open(theirs)
            assert (got.format, got.mode, got.size) == ("JPEG", mode, want.size)
            assert mode == "L" or got.layer == same.layer, "subsampling"
            assert got.quantization == same.quantization, "quality"
            assert bool(got.info.get("progressive")) == bool(options.get("progressive"))
            far = np.abs(np.asarray(same).astype(int) - np.asarray(got).astype(int))
            assert far.max() <= JPEG_TOLERANCE, (options, want.size, far.max())
            assert abs(len(mine) - len(theirs)) <= 32, (options, len(mine), len(theirs))


def test_quality_affects_size(tmp_path: Path) -> None:
    picture = _file(_scene(200, 150, "RGB"))
    for format in ("JPEG", "WEBP"):
        lengths = [
            len(
                _encode(tmp_path, [picture], fb.encode_image(format, quality=q))["image"][0].as_py()
            )
            for q in (20, 50, 80, 95)
        ]
        assert lengths == sorted(set(lengths)), (format, lengths)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_photographs_resized(data: Path, tmp_path: Path, format: str) -> None:
    """What the encoder gets is what a loader delivers: the operators before it change nothing."""
    files = sorted((data / "photos").iterdir())[:40]
    values = [file.read_bytes() for file in files]
    lossless = {"PNG": {}, "WEBP": {"lossless": True}, "JPEG": {"quality": 90}}[format]
    ops = [fb.Resize(64), fb.RandomHorizontalFlip(), fb.CenterCrop(56), fb.RandomErasing(p=0.3)]
    for quality in ("fast", "exact"):
        options = {"mode": "RGB", "quality": quality}
        got = _encode(tmp_path, values, *ops, fb.encode_image(format, **lossless), **options)
        plain = fb.read_parquet(tmp_path / "in.parquet").map_image(
            "image", ops, **options, dtype="uint8", layout="HWC"
        )
        loader = plain.loader(len(values), shuffle="none", format="numpy", seed=0)
        (batch,) = loader
        for pixels, image in zip(batch["image"], _images(got), strict=True):
            if format == "JPEG":
                want = _open(_file(Image.fromarray(pixels), "JPEG", quality=90))
                far = np.abs(np.asarray(want).astype(int) - np.asarray(image).astype(int))
                assert far.max() <= JPEG_TOLERANCE
            else:
                np.testing.assert_array_equal(pixels, np.asarray(image))


def test_each_file_keeps_its_mode_and_size(tmp_path: Path) -> None:
    """Without a mode, gray and colour and opacity may stand side by side."""
    pictures = [_scene(20 + 7 * i, 30 + i, MODES[i % 3], i) for i in range(12)]
    table = _encode(tmp_path, map(_file, pictures), fb.encode_image("PNG"))
    for want, got in zip(pictures, _images(table), strict=True):
        assert (got.mode, got.size) == (want.mode, want.size)
        np.testing.assert_array_equal(np.asarray(want), np.asarray(got))
    table = _encode(tmp_path, map(_file, pictures), fb.Resize(9), fb.encode_image("PNG"), mode="L")
    assert {image.mode for image in _images(table)} == {"L"}
    assert {min(image.size) for image in _images(table)} == {9}


def test_orientation_is_applied_and_no_metadata_is_written(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "a camera"
    picture = _scene(40, 24, "RGB")
    value = _file(picture, "JPEG", quality=95, exif=exif, icc_profile=b"\0" * 128, comment=b"hush")
    for format in ("JPEG", "PNG", "WEBP"):
        (got,) = _images(_encode(tmp_path, [value], fb.encode_image(format)))
        assert got.size == (24, 40)
        assert not got.getexif()
        assert not {"exif", "icc_profile", "comment"} & set(got.info)


def test_round_trip_through_a_loader(tmp_path: Path) -> None:
    pictures = [_scene(30, 20, "RGB", i) for i in range(25)]
    dataset = _dataset(tmp_path / "in.parquet", map(_file, pictures), row_group_size=4)
    before = dataset.map_image("image", mode="RGB", dtype="uint8", layout="HWC")
    dataset.map_image("image", [fb.encode_image("PNG")]).write_parquet(tmp_path / "out")
    after = fb.read_parquet(tmp_path / "out").map_image(
        "image", mode="RGB", dtype="uint8", layout="HWC"
    )
    for ds in (before, after):
        (batch,) = ds.loader(25, shuffle="none", format="numpy")
        assert batch["id"].tolist() == list(range(25))
        for want, got in zip(pictures, batch["image"], strict=True):
            np.testing.assert_array_equal(np.asarray(want), got)


OPS = [fb.RandomResizedCrop(24), fb.RandomHorizontalFlip(), fb.ColorJitter(0.3, 0.3, 0.3)]


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_threads_change_nothing(tmp_path: Path, format: str) -> None:
    """The same bytes, draws included, with one thread and with four, and from run to run."""
    values = [_file(_scene(40 + i % 9, 30 + i % 7, "RGB", i)) for i in range(150)]
    values[17] = values[90] = b"not a picture"
    dataset = _dataset(tmp_path / "in.parquet", values, row_group_size=40)
    for on_error in ("skip", "null"):
        job = dataset.map_image("image", [*OPS, fb.encode_image(format)], on_error=on_error)
        written = []
        for n, threads in enumerate((1, 4, 4)):
            out = tmp_path / f"{format}-{on_error}-{n}"
            job.write_parquet(out, num_threads=threads)
            written.append([file.read_bytes() for file in data_files(out)])
        assert written[0] == written[1] == written[2]


def test_draws_are_the_jobs(tmp_path: Path) -> None:
    """The encoder draws nothing, and what stands before it draws as it does without it."""
    values = [_file(_scene(40, 30, "RGB", i)) for i in range(20)]
    table = _encode(tmp_path, values, *OPS, fb.encode_image("PNG"), mode="RGB")
    dataset = fb.read_parquet(tmp_path / "in.parquet")
    plain = dataset.map_image("image", OPS, mode="RGB", dtype="uint8", layout="HWC")
    plain.write_parquet(tmp_path / "plain")
    want = _rows(tmp_path / "plain")["image"].combine_chunks().to_numpy_ndarray()
    for pixels, image in zip(want, _images(table), strict=True):
        np.testing.assert_array_equal(pixels, np.asarray(image))


class TestBadRows:
    """Null, cut off, no picture, empty; and what an operator or the format has no use for."""

    def values(self) -> list[bytes | None]:
        whole = [_file(_scene(20, 20, "RGB", i)) for i in range(12)]
        return [whole[0], None, whole[1][:40], whole[2], b"junk", b"", *whole[3:]]

    BAD = (1, 2, 4, 5)

    def test_skip(self, tmp_path: Path) -> None:
        values = self.values()
        listed = tmp_path / "bad.jsonl"
        dataset = _dataset(tmp_path / "in.parquet", values, row_group_size=5)
        job = dataset.map_image("image", [fb.encode_image("PNG")], on_error="skip")
        summary = job.write_parquet(tmp_path / "out", bad_rows_to=listed)
        assert (summary["rows_written"], summary["rows_bad"]) == (len(values) - 4, 4)
        table = _rows(tmp_path / "out")
        assert table["id"].to_pylist() == [i for i in range(len(values)) if i not in self.BAD]
        for row, image in zip(table["id"].to_pylist(), _images(table), strict=True):
            np.testing.assert_array_equal(np.asarray(_open(values[row])), np.asarray(image))
        assert len(listed.read_text().splitlines()) == 4

    @pytest.mark.parametrize("mode", [None, "RGB"])
    def test_null(self, tmp_path: Path, mode: str | None) -> None:
        values = self.values()
        table = _encode(
            tmp_path, values, fb.Resize([8, 8]), fb.encode_image("JPEG"), on_error="null", mode=mode
        )
        assert table.column_names == ["image", "image_valid", "id"]
        valid = [i not in self.BAD for i in range(len(values))]
        assert table["image_valid"].to_pylist() == valid
        assert [value is not None for value in table["image"].to_pylist()] == valid
        assert table["id"].to_pylist() == list(range(len(values)))

    def test_raise(self, tmp_path: Path) -> None:
        for row in self.BAD:
            values = self.values()
            values = [
                v if i == row or i not in self.BAD else values[0] for i, v in enumerate(values)
            ]
            with pytest.raises((fb.CorruptDataError, fb.SchemaError)) as caught:
                _encode(tmp_path, values, fb.encode_image("PNG"))
            text = str(caught.value)
            assert f"row {row}" in text, text
            assert "image" in text, text
            assert not (tmp_path / "out").exists() or not data_files(tmp_path / "out")

    def test_opacity_for_jpeg(self, tmp_path: Path) -> None:
        """The file's own, where no mode is declared: an error of its row, with the way out."""
        values = [_file(_scene(9, 9, mode)) for mode in ("L", "RGB", "RGBA")]
        with pytest.raises(fb.InvalidInputError, match="JPEG has no opacity") as caught:
            _encode(tmp_path, values, fb.encode_image("JPEG"))
        assert "row 2" in str(caught.value)
        assert 'mode="RGB"' in str(caught.value)
        table = _encode(tmp_path, values, fb.encode_image("JPEG"), on_error="skip")
        assert table["id"].to_pylist() == [0, 1]
        table = _encode(tmp_path, values, fb.encode_image("JPEG"), mode="RGB")
        assert {image.mode for image in _images(table)} == {"RGB"}

    @pytest.mark.parametrize(("format", "edge"), [("JPEG", 65_500), ("WEBP", 16_383)])
    def test_too_large_for_the_format(self, tmp_path: Path, format: str, edge: int) -> None:
        fits, beyond = (_file(Image.new("RGB", (w, 1))) for w in (edge, edge + 1))
        (got,) = _images(_encode(tmp_path, [fits], fb.encode_image(format)))
        assert got.size == (edge, 1)
        with pytest.raises(
            fb.InvalidInputError, match=f"{format}.* at most {edge} pixels"
        ) as caught:
            _encode(tmp_path, [fits, beyond], fb.encode_image(format))
        assert "row 1" in str(caught.value)
        table = _encode(tmp_path, [fits, beyond], fb.encode_image(format), on_error="null")
        assert table["image_valid"].to_pylist() == [True, False]
        # Known without a picture.
        dataset = fb.read_parquet(tmp_path / "in.parquet")
        job = dataset.map_image("image", [fb.Resize([1, edge + 1]), fb.encode_image(format)])
        with pytest.raises(fb.InvalidInputError, match="encode_image"):
            pa.schema(job.schema)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    values = [_file(_scene(9, 9, "RGB", i)) for i in range(3)]
    return _dataset(tmp_path_factory.mktemp("small") / "in.parquet", values)


@pytest.mark.parametrize(
    ("parameters", "texts"),
    [
        ({"format": "GIF"}, ["ops[0].encode_image", "JPEG, PNG, WEBP", "GIF"]),
        ({"format": "JPG"}, ["ops[0].encode_image", "JPEG"]),
        ({"format": "JPEG", "quality": 0}, ["encode_image.quality", "1 to 100"]),
        ({"format": "JPEG", "quality": 101}, ["encode_image.quality", "1 to 100"]),
        ({"format": "JPEG", "subsampling": "4:1:1"}, ["encode_image.subsampling", "4:2:0"]),
        ({"format": "JPEG", "lossless": True}, ["encode_image.lossless", "JPEG has no"]),
        ({"format": "JPEG", "compress_level": 6}, ["compress_level", "JPEG has no"]),
        (
            {"format": "PNG", "quality": 90},
            ["encode_image.quality", "PNG has no", "compress_level"],
        ),
        ({"format": "PNG", "compress_level": 10}, ["encode_image.compress_level", "0 to 9"]),
        ({"format": "PNG", "compress_level": -1}, ["encode_image.compress_level", "0 to 9"]),
        ({"format": "WEBP", "quality": 101}, ["encode_image.quality", "0 to 100"]),
        ({"format": "WEBP", "method": 7}, ["encode_image.method", "0 to 6"]),
        ({"format": "WEBP", "subsampling": "4:2:0"}, ["subsampling", "WEBP has no"]),
        ({"format": "WEBP", "progressive": True}, ["progressive", "WEBP has no"]),
    ],
)
def test_wrong_parameters(dataset: fb.Dataset, parameters: Any, texts: list[str]) -> None:
    with pytest.raises(fb.InvalidInputError) as caught:
        dataset.map_image("image", [fb.encode_image(**parameters)])
    for text in texts:
        assert text in str(caught.value), caught.value


@pytest.mark.parametrize(
    ("parameters", "argument"),
    [
        ({"format": 3}, "format=3"),
        ({"format": "JPEG", "quality": 90.5}, "quality=90.5"),
        ({"format": "JPEG", "quality": True}, "quality=True"),
        ({"format": "JPEG", "subsampling": 0}, "subsampling=0"),
        ({"format": "JPEG", "progressive": 1}, "progressive=1"),
        ({"format": "JPEG", "optimize": "yes"}, "optimize='yes'"),
        ({"format": "PNG", "compress_level": "6"}, "compress_level='6'"),
        ({"format": "WEBP", "lossless": 1}, "lossless=1"),
        ({"format": "WEBP", "method": 4.0}, "method=4.0"),
        ({"format": "WEBP", "exact": 0}, "exact=0"),
    ],
)
def test_wrong_types(parameters: Any, argument: str) -> None:
    with pytest.raises(TypeError) as caught:
        fb.encode_image(**parameters)
    assert f"encode_image({argument})" in str(caught.value)


@pytest.mark.parametrize(
    ("ops", "options", "texts"),
    [
        ([fb.encode_image("PNG"), fb.Resize(9)], {}, ["ops[1].resize", "last operator"]),
        ([fb.encode_image("PNG"), fb.encode_image("PNG")], {}, ["ops[1]", "last operator"]),
        (
            [fb.Normalize(0.5, 0.5), fb.encode_image("PNG")],
            {},
            ["ops[0].normalize", "encode_image"],
        ),
        ([fb.ToDtype("float16"), fb.encode_image("PNG")], {}, ["ops[0].to_dtype", "encode_image"]),
        ([fb.encode_image("PNG")], {"dtype": "float32"}, ["dtype", "encode_image"]),
        ([fb.encode_image("JPEG")], {"mode": "RGBA"}, ["ops[0].encode_image", "opacity", "RGB"]),
    ],
)
def test_what_stands_beside_it(
    dataset: fb.Dataset, ops: Any, options: Any, texts: list[str]
) -> None:
    with pytest.raises(fb.InvalidInputError) as caught:
        dataset.map_image("image", ops, **options)
    for text in texts:
        assert text in str(caught.value), caught.value


def test_what_may_stand_beside_it(dataset: fb.Dataset, tmp_path: Path) -> None:
    """Pixels as they are: an explicit uint8, gray made before JPEG, WebP's and PNG's opacity."""
    for n, (ops, options) in enumerate(
        [
            ([fb.ToDtype("uint8"), fb.encode_image("PNG")], {}),
            ([fb.encode_image("PNG")], {"dtype": "uint8", "layout": "HWC"}),
            ([fb.Grayscale(), fb.encode_image("JPEG")], {"mode": "RGB"}),
            ([fb.encode_image("WEBP")], {"mode": "RGBA"}),
        ]
    ):
        job = dataset.map_image("image", ops, **options)
        assert pa.schema(job.schema).field("image").type == pa.binary()
        job.write_parquet(tmp_path / str(n))


def test_it_is_described(dataset: fb.Dataset) -> None:
    op = fb.encode_image("JPEG", quality=90)
    assert repr(op) == "encode_image('JPEG', quality=90)"
    text = str(dataset.map_image("image", [fb.Resize(8), op], on_error="null").explain())
    assert "resize -> encode_image, JPEG" in text
    assert "null and marked in image_valid" in text


def test_loaders_refuse_it(dataset: fb.Dataset) -> None:
    for format in ("torch", "arrow"):
        job = dataset.map_image("image", [fb.encode_image("PNG")])
        with pytest.raises(fb.InvalidInputError, match="encode_image is for jobs") as caught:
            job.loader(2, format=format)
        assert "steps[0].map_image.ops[0].encode_image" in str(caught.value)
        assert "write_parquet" in str(caught.value)


def test_types_of_the_column(tmp_path: Path) -> None:
    """Bytes of any Arrow type become plain binary; name, metadata and other columns stay."""
    values = [_file(_scene(9, 9, "RGB", i)) for i in range(3)]
    field = pa.field("image", pa.large_binary(), nullable=False, metadata={"a": "b"})
    table = pa.table(
        [pa.array(values, pa.large_binary()), [1, 2, 3]],
        schema=pa.schema([field, ("id", pa.int64())]),
    )
    source = fb.read_parquet(write(tmp_path / "in.parquet", table))
    job = source.map_image("image", [fb.encode_image("PNG")]).rename({"image": "picture"})
    job.write_parquet(tmp_path / "out")
    got = _rows(tmp_path / "out")
    assert got.schema.field("picture").type == pa.binary()
    assert not got.schema.field("picture").nullable
    assert got.schema.field("picture").metadata[b"a"] == b"b"
    assert got["id"].to_pylist() == [1, 2, 3]
    # What is written may be added to.
    job.write_parquet(tmp_path / "out", mode="append")
    assert _rows(tmp_path / "out").num_rows == 6


def test_two_columns_and_steps_around(tmp_path: Path) -> None:
    """Two encoders of different settings, a tensor beside them, rows multiplied and filtered."""
    values = [_file(_scene(30, 20, "RGB", i)) for i in range(8)]
    columns = {
        "a": pa.array(values, pa.binary()),
        "b": pa.array(values, pa.binary()),
        "c": pa.array(values, pa.binary()),
        "id": list(range(8)),
        "tags": [list(range(i % 3)) for i in range(8)],
    }
    source = fb.read_parquet(write(tmp_path / "in.parquet", columns))
    job = (
        source.map_image("a", [fb.encode_image("JPEG", quality=95, optimize=True)])
        .map_image("b", [fb.Resize(9), fb.encode_image("JPEG", quality=30)], on_error="skip")
        .map_image("c", [fb.Resize([4, 4])], mode="RGB", dtype="uint8")
        .explode("tags")
        .filter("id > 3")
    )
    job.write_parquet(tmp_path / "out")
    table = _rows(tmp_path / "out")
    assert table["id"].to_pylist() == [4, 5, 5, 7]
    for row, a, b in zip(*(table[name].to_pylist() for name in ("id", "a", "b")), strict=True):
        want = _file(_open(values[row]), "JPEG", quality=95, optimize=True)
        far = np.abs(np.asarray(_open(want)).astype(int) - np.asarray(_open(a)).astype(int))
        assert far.max() <= JPEG_TOLERANCE
        assert min(_open(b).size) == 9


def test_row_groups_are_bounded(tmp_path: Path) -> None:
    """Encoded bytes count: row groups and files are cut as those of any binary column."""
    random = np.random.default_rng(0)
    noise = [random.integers(0, 256, (64, 64, 3), dtype=np.uint8) for _ in range(60)]
    dataset = _dataset(tmp_path / "in.parquet", [_file(Image.fromarray(n)) for n in noise])
    job = dataset.map_image("image", [fb.encode_image("PNG")])
    job.write_parquet(tmp_path / "out", row_group_bytes="64KiB", file_bytes="256KiB")
    files = data_files(tmp_path / "out")
    assert len(files) > 2
    for file in files:
        footer = pq.read_metadata(file)
        sizes = [footer.row_group(i).total_byte_size for i in range(footer.num_row_groups)]
        assert max(sizes) <= 64 * 1024 * 1.5, sizes
    assert _rows(tmp_path / "out")["id"].to_pylist() == list(range(60))


def test_many_tiny_pictures(tmp_path: Path) -> None:
    values = [_file(Image.new("L", (1, 1), i % 256)) for i in range(300)]
    table = _encode(tmp_path, values * 100, fb.encode_image("PNG"))
    assert table["id"].to_pylist() == list(range(30_000))
    assert [image.getpixel((0, 0)) for image in _images(table.slice(29_700))] == [
        i % 256 for i in range(300)
    ]


def test_a_job_file(binary: Path, tmp_path: Path) -> None:
    del binary
    pictures = [_scene(30 + i, 20, "RGB", i) for i in range(5)]
    _dataset(tmp_path / "in.parquet", map(_file, pictures))
    job = tmp_path / "job.yaml"
    steps = """
source: { parquet: in.parquet }
steps:
  - map_image:
      column: image
      ops:
        - resize: 16
        - encode_image: OP
sink: { parquet: OUT }
"""
    operators = {
        "jpeg": "JPEG",
        "long": "{ format: JPEG, quality: 90 }",
        "webp": "webp",
        "png": "PNG",
    }
    for out, op in operators.items():
        job.write_text(steps.replace("OP", op).replace("OUT", out))
        code, stdout, stderr = forebay("run", job, "--json", cwd=tmp_path)
        assert code == 0, stderr
        assert json.loads(stdout.splitlines()[-1])["rows_written"] == 5
        images = _images(_rows(tmp_path / out))
        assert {min(image.size) for image in images} == {16}
        assert {image.format.lower() for image in images} == {out.replace("long", "jpeg")}
    lengths = {
        out: sum(map(len, _rows(tmp_path / out)["image"].to_pylist())) for out in ("jpeg", "long")
    }
    assert lengths["jpeg"] < lengths["long"]
    job.write_text(steps.replace("OP", "{ format: PNG, quality: 90 }").replace("OUT", "no"))
    code, _, stderr = forebay("run", job, cwd=tmp_path)
    assert code == 2
    assert "job.yaml:8:" in stderr, stderr
    assert "PNG has no" in stderr, stderr
