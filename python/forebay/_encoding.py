"""Pictures written back by jobs: `encode_image`, with the names and defaults of Pillow's `save`."""

from __future__ import annotations

from typing import Any

from forebay import _arguments
from forebay._images import ImageOp


class EncodeImage(ImageOp):
    """What `encode_image` gives."""

    def __repr__(self) -> str:
        parameters = dict(self._parameters)
        first = [repr(parameters.pop("format"))]
        return f"encode_image({', '.join(first + [f'{k}={v!r}' for k, v in parameters.items()])})"


def encode_image(
    format: str,
    *,
    quality: int | None = None,
    subsampling: str | None = None,
    progressive: bool | None = None,
    optimize: bool | None = None,
    compress_level: int | None = None,
    lossless: bool | None = None,
    method: int | None = None,
    exact: bool | None = None,
) -> ImageOp:
    """Write the picture back as a file, for jobs: the last operator of a `Dataset.map_image`.

    The column stays binary, with the bytes of the new file in place of the old one's. Each row is a
    picture of its own: sizes may differ, and modes where `Dataset.map_image` has no `mode`. How the
    camera was held has been applied, and no metadata is written. Names, meanings and defaults are
    those of Pillow's ``Image.save``; a parameter that the format does not have is an error.

    Parameters
    ----------
    format : {"JPEG", "PNG", "WEBP"}
        JPEG has no opacity: pictures of mode RGBA are an error, ``mode="RGB"`` leaves it out. WebP
        has no gray: mode L is written as RGB. Lower case is accepted.
    quality : int, optional
        JPEG: 1 to 100, default 75. WebP: 0 to 100, default 80; of lossless pictures, how hard to
        try.
    subsampling : {"4:4:4", "4:2:2", "4:2:0"}, optional
        JPEG: how many pixels share one sample of colour. Default: "4:2:0".
    progressive : bool, optional
        JPEG: the whole picture first, its details later. Default: False.
    optimize : bool, optional
        JPEG: Huffman tables made for the picture; smaller and slower. Default: False.
    compress_level : int, optional
        PNG: 0 to 9, default 6.
    lossless : bool, optional
        WebP: keep every visible pixel as it is. Default: False.
    method : int, optional
        WebP: speed against size, 0 to 6, default 4.
    exact : bool, optional
        WebP: keep the colours of wholly transparent pixels too. Default: False.

    Examples
    --------
    >>> import tempfile
    >>> import forebay as fb
    >>> ds = fb.read_parquet("examples/data/photos", columns=["image", "label"])
    >>> ops = [fb.Resize(64), fb.CenterCrop(56), fb.encode_image("JPEG", quality=90)]
    >>> small = ds.map_image("image", ops, mode="RGB")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     summary = small.write_parquet(folder)
    >>> summary["rows_written"] == ds.count()
    True
    """
    call = "encode_image"

    def whole(argument: str, value: Any) -> int | None:
        return None if value is None else _arguments.whole(call, argument, value)

    def flag(argument: str, value: Any) -> bool | None:
        return None if value is None else _arguments.flag(call, argument, value)

    def text(argument: str, value: Any, want: str) -> str:
        return _arguments.text(call, argument, value, want)

    if subsampling is not None:
        subsampling = text("subsampling", subsampling, 'a word such as "4:2:0"')
    return EncodeImage(
        call,
        format=text("format", format, '"JPEG", "PNG" or "WEBP"'),
        quality=whole("quality", quality),
        subsampling=subsampling,
        progressive=flag("progressive", progressive),
        optimize=flag("optimize", optimize),
        compress_level=whole("compress_level", compress_level),
        lossless=flag("lossless", lossless),
        method=whole("method", method),
        exact=flag("exact", exact),
    )
