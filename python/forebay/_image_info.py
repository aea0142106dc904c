"""What a picture is, from its header alone."""

from __future__ import annotations

from typing import NamedTuple

from forebay import _forebay


class ImageInfo(NamedTuple):
    """Size, mode and format of a picture, as its header says.

    Attributes
    ----------
    width, height : int
        Pixels as seen: after the EXIF orientation, as the first operator gets the picture.
    mode : str
        ``"L"``, ``"RGB"`` or ``"RGBA"``: what ``map_image(mode=None)`` keeps.
    format : str
        ``"JPEG"``, ``"PNG"``, ``"WEBP"``, ``"GIF"``, ``"BMP"`` or ``"TIFF"``.
    """

    width: int
    height: int
    mode: str
    format: str


def image_info(data: bytes | bytearray | memoryview) -> ImageInfo:
    """Read the header of a picture; nothing is decoded.

    No limit is set on what the header says, so giants can be told by their size. What lies behind
    the header is not looked at and may be damaged. In SQL, ``image_width(column)``,
    ``image_height(column)``, ``image_mode(column)`` and ``image_format(column)`` say the same, and
    are null where the header cannot be read.

    Parameters
    ----------
    data : bytes, bytearray or memoryview
        The bytes of the file, not its name.

    Raises
    ------
    CorruptDataError
        The bytes are no picture.
    UnsupportedError
        A format, or a kind of it, that ``map_image`` does not read.
    TypeError
        Something else than bytes.

    Examples
    --------
    >>> import forebay as fb
    >>> gray = b"P5 2 3 255 "  # a format that is not read
    >>> fb.image_info(gray)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    forebay._errors.CorruptDataError: ...
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        hint = ": open the file and give what read() gives" if isinstance(data, str) else ""
        raise TypeError(f"image_info takes the bytes of a picture, not {type(data).__name__}{hint}")
    return ImageInfo(*_forebay.image_info(bytes(data)))
