"""Image operators, with the names, parameters and defaults of torchvision's v2 transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forebay import _arguments

Size = int | Sequence[int]


def _pixels(operator: str, argument: str, value: Any) -> int | list[int]:
    many = _arguments.items(value)
    if many is None:
        return _arguments.whole(operator, argument, value)
    return [_arguments.whole(operator, argument, n) for n in many]


def _numbers(operator: str, argument: str, value: Any) -> float | list[float]:
    many = _arguments.items(value)
    if many is None:
        return _arguments.number(operator, argument, value)
    return [_arguments.number(operator, argument, n) for n in many]


class ImageOp:
    """One operator of `Dataset.map_image`; a description, nothing runs until a batch is made."""

    def __init__(self, word: str, **parameters: Any) -> None:
        self._word = word
        self._parameters = {k: v for k, v in parameters.items() if v is not None}

    def _as_plan(self) -> dict[str, Any]:
        return {self._word: self._parameters}

    def __repr__(self) -> str:
        parameters = ", ".join(f"{k}={v!r}" for k, v in self._parameters.items())
        return f"{type(self).__name__}({parameters})"


class Resize(ImageOp):
    """Resize the picture.

    Parameters
    ----------
    size : int or (int, int)
        One number is the length of the shorter edge, the other edge follows; two are height and
        width. Pixels.
    interpolation : {"bilinear", "bicubic", "nearest"}, default "bilinear"
        How pixels between pixels are found.
    max_size : int, optional
        Upper limit of the longer edge, with a one-number size only.
    antialias : bool, default True
        Low-pass before shrinking.
    """

    def __init__(
        self,
        size: Size,
        interpolation: str = "bilinear",
        max_size: int | None = None,
        antialias: bool = True,
    ) -> None:
        super().__init__(
            "resize",
            size=_pixels("Resize", "size", size),
            interpolation=interpolation,
            max_size=None if max_size is None else _arguments.whole("Resize", "max_size", max_size),
            antialias=antialias,
        )


class CenterCrop(ImageOp):
    """Cut out the middle; a smaller picture is padded with zeros.

    Parameters
    ----------
    size : int or (int, int)
        Height and width in pixels; one number is both.
    """

    def __init__(self, size: Size) -> None:
        super().__init__("center_crop", size=_pixels("CenterCrop", "size", size))


class RandomCrop(ImageOp):
    """Cut out a part at a random place.

    Parameters
    ----------
    size : int or (int, int)
        Height and width in pixels; one number is both.
    padding : int or sequence of 2 or 4 ints, optional
        Pixels added before: all sides; left/right and top/bottom; or left, top, right, bottom.
    pad_if_needed : bool, default False
        Pad a picture that is smaller than `size`; otherwise that is an error.
    fill : int, default 0
        Value of the padding, 0 to 255.
    padding_mode : {"constant", "edge", "reflect", "symmetric"}, default "constant"
        What the padding shows.
    """

    def __init__(
        self,
        size: Size,
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: int = 0,
        padding_mode: str = "constant",
    ) -> None:
        super().__init__(
            "random_crop",
            size=_pixels("RandomCrop", "size", size),
            padding=None if padding is None else _pixels("RandomCrop", "padding", padding),
            pad_if_needed=pad_if_needed,
            fill=_arguments.whole("RandomCrop", "fill", fill),
            padding_mode=padding_mode,
        )


class RandomResizedCrop(ImageOp):
    """Cut out a part of random area and aspect ratio, and resize it.

    Parameters
    ----------
    size : int or (int, int)
        Height and width of the result in pixels; one number is both.
    scale : (float, float), default (0.08, 1.0)
        Share of the picture's area, lower and upper.
    ratio : (float, float), default (3/4, 4/3)
        Width over height of the part, lower and upper.
    interpolation : {"bilinear", "bicubic", "nearest"}, default "bilinear"
        How pixels between pixels are found.
    antialias : bool, default True
        Low-pass before shrinking.
    """

    def __init__(
        self,
        size: Size,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3.0 / 4.0, 4.0 / 3.0),
        interpolation: str = "bilinear",
        antialias: bool = True,
    ) -> None:
        super().__init__(
            "random_resized_crop",
            size=_pixels("RandomResizedCrop", "size", size),
            scale=_numbers("RandomResizedCrop", "scale", scale),
            ratio=_numbers("RandomResizedCrop", "ratio", ratio),
            interpolation=interpolation,
            antialias=antialias,
        )


class RandomHorizontalFlip(ImageOp):
    """Mirror the picture left to right with a probability.

    Parameters
    ----------
    p : float, default 0.5
        The probability.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(
            "random_horizontal_flip", p=_arguments.number("RandomHorizontalFlip", "p", p)
        )


class Normalize(ImageOp):
    """Subtract the mean and divide by the standard deviation, per channel.

    Works on values of 0 to 1; must be the last operator, with a float dtype.

    Parameters
    ----------
    mean, std : float or sequence of float
        One value for all channels, or one for each; no standard deviation may be 0.
    """

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        super().__init__(
            "normalize",
            mean=_numbers("Normalize", "mean", mean),
            std=_numbers("Normalize", "std", std),
        )
