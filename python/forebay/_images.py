"""Image operators, with the names, parameters and defaults of torchvision's v2 transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forebay import _arguments

Size = int | Sequence[int]


def pixels(operator: str, argument: str, value: Any) -> int | list[int]:
    many = _arguments.items(value)
    if many is None:
        return _arguments.whole(operator, argument, value)
    return [_arguments.whole(operator, argument, n) for n in many]


def numbers(operator: str, argument: str, value: Any) -> float | list[float]:
    many = _arguments.items(value)
    if many is None:
        return _arguments.number(operator, argument, value)
    return [_arguments.number(operator, argument, n) for n in many]


def numbers_or_none(operator: str, argument: str, value: Any) -> float | list[float] | None:
    return None if value is None else numbers(operator, argument, value)


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
            size=pixels("Resize", "size", size),
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
        super().__init__("center_crop", size=pixels("CenterCrop", "size", size))


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
            size=pixels("RandomCrop", "size", size),
            padding=None if padding is None else pixels("RandomCrop", "padding", padding),
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
            size=pixels("RandomResizedCrop", "size", size),
            scale=numbers("RandomResizedCrop", "scale", scale),
            ratio=numbers("RandomResizedCrop", "ratio", ratio),
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


class RandomVerticalFlip(ImageOp):
    """Turn the picture upside down with a probability, as in a mirror below it.

    Parameters
    ----------
    p : float, default 0.5
        The probability.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__("random_vertical_flip", p=_arguments.number("RandomVerticalFlip", "p", p))


class Pad(ImageOp):
    """Add pixels around the picture.

    Parameters
    ----------
    padding : int or sequence of 2 or 4 ints
        Pixels added: on all sides; left/right and top/bottom; or left, top, right, bottom.
    fill : int or sequence of int, default 0
        Value of the padding, 0 to 255; one for all channels or one for each.
    padding_mode : {"constant", "edge", "reflect", "symmetric"}, default "constant"
        What the padding shows: `fill`, the border pixel, or the picture mirrored without or with
        its border pixel.
    """

    def __init__(
        self,
        padding: int | Sequence[int],
        fill: int | Sequence[int] = 0,
        padding_mode: str = "constant",
    ) -> None:
        super().__init__(
            "pad",
            padding=pixels("Pad", "padding", padding),
            fill=pixels("Pad", "fill", fill),
            padding_mode=padding_mode,
        )


class RandomRotation(ImageOp):
    """Turn the picture by a random angle.

    Parameters
    ----------
    degrees : float or (float, float)
        A number ``x`` stands for ``-x`` to ``x``; two are the least and the greatest angle.
        Counter-clockwise.
    interpolation : {"nearest", "bilinear"}, default "nearest"
        How pixels between pixels are found.
    expand : bool, default False
        Make the picture large enough for the whole turned one; each then has its own size.
    center : (float, float), optional
        What stays in its place: x and y in pixels from the upper left corner. Default: the middle.
    fill : int or sequence of int, default 0
        What lies outside, 0 to 255; one for all channels or one for each.
    """

    def __init__(
        self,
        degrees: float | Sequence[float],
        interpolation: str = "nearest",
        expand: bool = False,
        center: Sequence[float] | None = None,
        fill: int | Sequence[int] = 0,
    ) -> None:
        super().__init__(
            "random_rotation",
            degrees=numbers("RandomRotation", "degrees", degrees),
            interpolation=interpolation,
            expand=_arguments.flag("RandomRotation", "expand", expand),
            center=numbers_or_none("RandomRotation", "center", center),
            fill=pixels("RandomRotation", "fill", fill),
        )


class RandomAffine(ImageOp):
    """Turn, shift, scale and shear the picture at random, in its own size.

    Parameters
    ----------
    degrees : float or (float, float)
        A number ``x`` stands for ``-x`` to ``x``; two are the least and the greatest angle.
        Clockwise, unlike `RandomRotation`, as in torchvision.
    translate : (float, float), optional
        The greatest shift along width and height, as shares of them. Whole pixels are drawn.
    scale : (float, float), optional
        The least and the greatest factor.
    shear : float or sequence of 2 or 4 floats, optional
        Degrees, within -89 to 89: a number ``x`` stands for ``-x`` to ``x`` along x; two are the
        range along x, four the ranges along x and y.
    interpolation : {"nearest", "bilinear"}, default "nearest"
        How pixels between pixels are found.
    fill : int or sequence of int, default 0
        What lies outside, 0 to 255; one for all channels or one for each.
    center : (float, float), optional
        What stays in its place: x and y in pixels from the upper left corner. Default: the middle.
    """

    def __init__(
        self,
        degrees: float | Sequence[float],
        translate: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
        shear: float | Sequence[float] | None = None,
        interpolation: str = "nearest",
        fill: int | Sequence[int] = 0,
        center: Sequence[float] | None = None,
    ) -> None:
        name = "RandomAffine"
        super().__init__(
            "random_affine",
            degrees=numbers(name, "degrees", degrees),
            translate=numbers_or_none(name, "translate", translate),
            scale=numbers_or_none(name, "scale", scale),
            shear=numbers_or_none(name, "shear", shear),
            interpolation=interpolation,
            fill=pixels(name, "fill", fill),
            center=numbers_or_none(name, "center", center),
        )


class ToDtype(ImageOp):
    """Set the element type of the tensor. Only `Normalize` and `RandomErasing` may follow.

    Without this operator the tensor has the `dtype` of `Dataset.map_image`, with floats of 0 to 1.

    Parameters
    ----------
    dtype : {"uint8", "float16", "bfloat16", "float32"} or torch.dtype
        The type. If `Dataset.map_image` is given one as well, it is the same.
    scale : bool, default False
        Whether floats are 0 to 1. The default is torchvision's and leaves them 0 to 255: most
        models want True.

    Examples
    --------
    >>> import forebay as fb
    >>> ops = [fb.Resize([32, 32]), fb.ToDtype("float32", scale=True), fb.Normalize(0.5, 0.25)]
    >>> ds = fb.read_parquet("examples/data/photos").map_image("image", ops, mode="RGB")
    """

    def __init__(self, dtype: Any, scale: bool = False) -> None:
        # A dtype of torch shows itself as "torch.float32"; torch need not be there for that.
        word = dtype if isinstance(dtype, str) else str(dtype).removeprefix("torch.")
        super().__init__("to_dtype", dtype=word, scale=_arguments.flag("ToDtype", "scale", scale))


class Normalize(ImageOp):
    """Subtract the mean and divide by the standard deviation, per channel.

    Needs a float dtype. Values are 0 to 1 before, unless `ToDtype` leaves them 0 to 255. Only
    `RandomErasing` may follow.

    Parameters
    ----------
    mean, std : float or sequence of float
        One value for all channels, or one for each; no standard deviation may be 0.
    """

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        super().__init__(
            "normalize",
            mean=numbers("Normalize", "mean", mean),
            std=numbers("Normalize", "std", std),
        )


class RandomErasing(ImageOp):
    """Overwrite a random rectangle with a probability.

    Behind `ToDtype` or `Normalize` it overwrites values of the tensor; before them, 8-bit pixels.

    Parameters
    ----------
    p : float, default 0.5
        The probability.
    scale : (float, float), default (0.02, 0.33)
        Share of the picture's area, lower and upper, within 0 to 1.
    ratio : (float, float), default (0.3, 3.3)
        Height over width of the rectangle, lower and upper.
    value : float, sequence of float or "random", default 0
        What is written: one number for all channels, one for each, or normal noise of mean 0 and
        deviation 1 for each element. Over 8-bit pixels numbers are 0 to 255, their fraction cut
        off, and noise is of little use.

    Examples
    --------
    >>> import forebay as fb
    >>> fb.RandomErasing(p=0.25, value="random")
    RandomErasing(p=0.25, scale=[0.02, 0.33], ratio=[0.3, 3.3], value='random')
    """

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | Sequence[float] | str = 0.0,
    ) -> None:
        name = "RandomErasing"
        super().__init__(
            "random_erasing",
            p=_arguments.number(name, "p", p),
            scale=numbers(name, "scale", scale),
            ratio=numbers(name, "ratio", ratio),
            value=value if isinstance(value, str) else numbers(name, "value", value),
        )
