"""Image operators on colours: as torchvision's v2 transforms of the same names."""

from __future__ import annotations

from collections.abc import Sequence

from forebay import _arguments
from forebay._images import ImageOp, numbers, numbers_or_none, pixels


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


class RandomGrayscale(ImageOp):
    """Replace all channels by the luminance with a probability.

    The number of channels stays. Takes pictures of mode L and RGB.

    Parameters
    ----------
    p : float, default 0.1
        The probability.
    """

    def __init__(self, p: float = 0.1) -> None:
        super().__init__("random_grayscale", p=_arguments.number("RandomGrayscale", "p", p))


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
            brightness=numbers_or_none("ColorJitter", "brightness", brightness),
            contrast=numbers_or_none("ColorJitter", "contrast", contrast),
            saturation=numbers_or_none("ColorJitter", "saturation", saturation),
            hue=numbers_or_none("ColorJitter", "hue", hue),
        )


class RandomInvert(ImageOp):
    """Make the negative of the picture with a probability.

    Parameters
    ----------
    p : float, default 0.5
        The probability.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__("random_invert", p=_arguments.number("RandomInvert", "p", p))


class RandomPosterize(ImageOp):
    """Keep the upper bits of every value with a probability.

    Parameters
    ----------
    bits : int
        How many bits are kept, 0 to 8.
    p : float, default 0.5
        The probability.
    """

    def __init__(self, bits: int, p: float = 0.5) -> None:
        super().__init__(
            "random_posterize",
            bits=_arguments.whole("RandomPosterize", "bits", bits),
            p=_arguments.number("RandomPosterize", "p", p),
        )


class RandomSolarize(ImageOp):
    """Invert the values from a threshold on with a probability.

    Parameters
    ----------
    threshold : float
        The least value that is inverted, 255 at most.
    p : float, default 0.5
        The probability.
    """

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        super().__init__(
            "random_solarize",
            threshold=_arguments.number("RandomSolarize", "threshold", threshold),
            p=_arguments.number("RandomSolarize", "p", p),
        )


class RandomAdjustSharpness(ImageOp):
    """Sharpen or blur the picture with a probability. Takes pictures of mode L and RGB.

    Parameters
    ----------
    sharpness_factor : float
        0 blurs, 1 leaves the picture as it is, 2 sharpens as much as 0 blurs.
    p : float, default 0.5
        The probability.
    """

    def __init__(self, sharpness_factor: float, p: float = 0.5) -> None:
        name = "RandomAdjustSharpness"
        super().__init__(
            "random_adjust_sharpness",
            sharpness_factor=_arguments.number(name, "sharpness_factor", sharpness_factor),
            p=_arguments.number(name, "p", p),
        )


class RandomAutocontrast(ImageOp):
    """Spread every channel over 0 to 255 with a probability. Takes pictures of mode L and RGB.

    Parameters
    ----------
    p : float, default 0.5
        The probability.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__("random_autocontrast", p=_arguments.number("RandomAutocontrast", "p", p))


class RandomEqualize(ImageOp):
    """Make all values of a channel about equally frequent with a probability.

    Parameters
    ----------
    p : float, default 0.5
        The probability.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__("random_equalize", p=_arguments.number("RandomEqualize", "p", p))


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
            kernel_size=pixels("GaussianBlur", "kernel_size", kernel_size),
            sigma=numbers("GaussianBlur", "sigma", sigma),
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
            fill=None if fill is None else pixels(name, "fill", fill),
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
            fill=None if fill is None else pixels(name, "fill", fill),
        )
