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


def _interval(operator: str, argument: str, value: Any) -> float | list[float] | None:
    return None if value is None else _numbers(operator, argument, value)


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
            padding=_pixels("Pad", "padding", padding),
            fill=_pixels("Pad", "fill", fill),
            padding_mode=padding_mode,
        )


class Grayscale(ImageOp):
    """Keep the luminance: 0.2989 red + 0.587 green + 0.114 blue, its fraction cut off.

    It changes the number of channels; pictures of mode RGBA are refused, as by torchvision.

    Parameters
    ----------
    num_output_channels : {1, 3}, default 1
        One channel, or three equal ones.
    """

    def __init__(self, num_output_channels: int = 1) -> None:
        channels = _arguments.whole("Grayscale", "num_output_channels", num_output_channels)
        super().__init__("grayscale", num_output_channels=channels)


class ColorJitter(ImageOp):
    """Change brightness, contrast, saturation and hue by random factors, in random order.

    Takes pictures of mode L, whose saturation and hue stay as they are, and RGB.

    Parameters
    ----------
    brightness, contrast, saturation : float or (float, float), optional
        A number ``x`` stands for factors from ``max(0, 1 - x)`` to ``1 + x``; two are the least
        and the greatest factor. 1 leaves the picture as it is. Default: not changed.
    hue : float or (float, float), optional
        The shift in turns of the colour circle, within -0.5 to 0.5; a number ``x`` stands for
        ``-x`` to ``x``. Default: not changed.

    Examples
    --------
    >>> import forebay as fb
    >>> fb.ColorJitter(brightness=0.4, hue=(-0.1, 0.1))
    ColorJitter(brightness=0.4, hue=[-0.1, 0.1])
    """

    def __init__(
        self,
        brightness: float | Sequence[float] | None = None,
        contrast: float | Sequence[float] | None = None,
        saturation: float | Sequence[float] | None = None,
        hue: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(
            "color_jitter",
            brightness=_interval("ColorJitter", "brightness", brightness),
            contrast=_interval("ColorJitter", "contrast", contrast),
            saturation=_interval("ColorJitter", "saturation", saturation),
            hue=_interval("ColorJitter", "hue", hue),
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
            degrees=_numbers("RandomRotation", "degrees", degrees),
            interpolation=interpolation,
            expand=_arguments.flag("RandomRotation", "expand", expand),
            center=_interval("RandomRotation", "center", center),
            fill=_pixels("RandomRotation", "fill", fill),
        )


class GaussianBlur(ImageOp):
    """Blur the picture with a Gaussian; at the border the picture is mirrored.

    Parameters
    ----------
    kernel_size : int or (int, int)
        Width and height of the kernel in pixels, odd; one number is both. Half of it must be less
        than the picture's edge.
    sigma : float or (float, float), default (0.1, 2.0)
        Standard deviation in pixels, the same along both axes: fixed, or drawn uniformly between
        two.
    """

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        sigma: float | Sequence[float] = (0.1, 2.0),
    ) -> None:
        super().__init__(
            "gaussian_blur",
            kernel_size=_pixels("GaussianBlur", "kernel_size", kernel_size),
            sigma=_numbers("GaussianBlur", "sigma", sigma),
        )


class TrivialAugmentWide(ImageOp):
    """Do one random operation of random strength (Müller and Hutter, 2021).

    One of fourteen: nothing, shears, shifts, a turn, brightness, colour, contrast, sharpness, fewer
    bits, solarisation, autocontrast, equalisation. Takes pictures of mode L and RGB.

    Parameters
    ----------
    num_magnitude_bins : int, default 31
        How many strengths there are.
    interpolation : {"nearest", "bilinear"}, default "nearest"
        How pixels between pixels are found when the picture is turned or sheared.
    fill : int or sequence of int, optional
        What lies outside then, 0 to 255; one for all channels or one for each. Default: black.
    """

    def __init__(
        self,
        num_magnitude_bins: int = 31,
        interpolation: str = "nearest",
        fill: int | Sequence[int] | None = None,
    ) -> None:
        name = "TrivialAugmentWide"
        super().__init__(
            "trivial_augment_wide",
            num_magnitude_bins=_arguments.whole(name, "num_magnitude_bins", num_magnitude_bins),
            interpolation=interpolation,
            fill=None if fill is None else _pixels(name, "fill", fill),
        )


class RandAugment(ImageOp):
    """Do random operations of one strength, one after the other (Cubuk et al., 2019).

    The operations are those of `TrivialAugmentWide`, over narrower ranges. Takes pictures of mode L
    and RGB.

    Parameters
    ----------
    num_ops : int, default 2
        How many operations.
    magnitude : int, default 9
        Their strength, from 0 to less than `num_magnitude_bins`.
    num_magnitude_bins : int, default 31
        How many strengths there are.
    interpolation : {"nearest", "bilinear"}, default "nearest"
        How pixels between pixels are found when the picture is turned or sheared.
    fill : int or sequence of int, optional
        What lies outside then, 0 to 255; one for all channels or one for each. Default: black.
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: str = "nearest",
        fill: int | Sequence[int] | None = None,
    ) -> None:
        name = "RandAugment"
        super().__init__(
            "rand_augment",
            num_ops=_arguments.whole(name, "num_ops", num_ops),
            magnitude=_arguments.whole(name, "magnitude", magnitude),
            num_magnitude_bins=_arguments.whole(name, "num_magnitude_bins", num_magnitude_bins),
            interpolation=interpolation,
            fill=None if fill is None else _pixels(name, "fill", fill),
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
            mean=_numbers("Normalize", "mean", mean),
            std=_numbers("Normalize", "std", std),
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
            scale=_numbers(name, "scale", scale),
            ratio=_numbers(name, "ratio", ratio),
            value=value if isinstance(value, str) else _numbers(name, "value", value),
        )
