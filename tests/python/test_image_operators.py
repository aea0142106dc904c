"""Image operators on pixels against torchvision: same parameters, same pictures, same pixels.

Pictures are PNGs, so that both sides begin with the same pixels: parts of the photographs of
``examples/data``, noise, and shapes that are narrow or tiny. Draws are fixed by ranges of one
value; where an operator chooses among a few, its result has to be one of torchvision's for them.

Tolerances are in units of 1/255, beside the share of values that may differ at all. Tables, flips,
padding and histograms have none. What is left is rounding at ties: of sums of floats in another
order (blur), and of places between two pixels (warps).
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
pq = pytest.importorskip("pyarrow.parquet")
torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")
v2 = pytest.importorskip("torchvision.transforms.v2")

from pictures import (  # noqa: E402
    GRAYS,
    OPAQUE,
    PHOTOS,
    READINGS,
    SCENES,
    agree,
    parquet,
    run,
    tensor,
)

import forebay as fb  # noqa: E402

F = v2.functional


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, np.ndarray, int]:
    """One picture, many times: every row has draws of its own."""
    pixels, rows = SCENES[0][:40, :50], 600
    return parquet(tmp_path_factory.mktemp("many"), [pixels] * rows), pixels, rows


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, list[np.ndarray]]]:
    kinds = {"RGB": SCENES, "L": GRAYS, "RGBA": OPAQUE}
    return {
        mode: (parquet(tmp_path_factory.mktemp(mode), pictures), pictures)
        for mode, pictures in kinds.items()
    }


# Name: (operators, torchvision's, tolerance, share of values that may differ, modes).
ALL = ("RGB", "L", "RGBA")
COLOURS = ("RGB", "L")
FIXED: dict[str, tuple] = {
    "vertical_flip": ([fb.RandomVerticalFlip(1.0)], v2.RandomVerticalFlip(1.0), 0, 0, ALL),
    "never": (
        [fb.RandomVerticalFlip(0.0), fb.RandomErasing(0.0)],
        v2.Identity(),
        0,
        0,
        ALL,
    ),
    "pad": ([fb.Pad(3, fill=7)], v2.Pad(3, fill=7), 0, 0, ALL),
    "pad_two": ([fb.Pad((1, 5))], v2.Pad((1, 5)), 0, 0, ALL),
    "pad_four": ([fb.Pad((1, 2, 3, 4), fill=255)], v2.Pad((1, 2, 3, 4), fill=255), 0, 0, ALL),
    "pad_channels": (
        [fb.Pad((4, 0), fill=(1, 20, 255))],
        v2.Pad((4, 0), fill=(1, 20, 255)),
        0,
        0,
        ("RGB",),
    ),
    "pad_edge": (
        [fb.Pad((9, 4), padding_mode="edge")],
        v2.Pad((9, 4), padding_mode="edge"),
        0,
        0,
        ALL,
    ),
    "pad_reflect": (
        [fb.Pad(9, padding_mode="reflect")],
        v2.Pad(9, padding_mode="reflect"),
        0,
        0,
        ALL,
    ),
    "pad_symmetric": (
        [fb.Pad(9, padding_mode="symmetric")],
        v2.Pad(9, padding_mode="symmetric"),
        0,
        0,
        ALL,
    ),
    # 21 of the 16,777,216 colours have a luminance that is whole but for rounding.
    "grayscale": ([fb.Grayscale()], v2.Grayscale(), 1, 1e-4, COLOURS),
    "grayscale_three": ([fb.Grayscale(3)], v2.Grayscale(3), 1, 1e-4, COLOURS),
    # A resize behind it rounds its weights in fixed point.
    "grayscale_resize": (
        [fb.Grayscale(), fb.Resize([20, 30]), fb.RandomHorizontalFlip(1.0), fb.Pad(2)],
        v2.Compose([v2.Grayscale(), v2.Resize([20, 30]), v2.RandomHorizontalFlip(1.0), v2.Pad(2)]),
        1,
        0.1,
        COLOURS,
    ),
    "flip_pad_flip": (
        [fb.RandomVerticalFlip(1.0), fb.Pad((1, 2, 3, 4)), fb.RandomHorizontalFlip(1.0)],
        v2.Compose(
            [v2.RandomVerticalFlip(1.0), v2.Pad((1, 2, 3, 4)), v2.RandomHorizontalFlip(1.0)]
        ),
        0,
        0,
        ALL,
    ),
    "flips_and_crops": (
        [fb.RandomHorizontalFlip(1.0), fb.RandomVerticalFlip(1.0), fb.CenterCrop((14, 9))],
        v2.Compose(
            [v2.RandomHorizontalFlip(1.0), v2.RandomVerticalFlip(1.0), v2.CenterCrop((14, 9))]
        ),
        0,
        0,
        ALL,
    ),
    "flip_rotate_flip": (
        [
            fb.RandomHorizontalFlip(1.0),
            fb.RandomRotation((30, 30)),
            fb.RandomVerticalFlip(1.0),
            fb.CenterCrop(12),
        ],
        v2.Compose(
            [
                v2.RandomHorizontalFlip(1.0),
                v2.RandomRotation((30, 30)),
                v2.RandomVerticalFlip(1.0),
                v2.CenterCrop(12),
            ]
        ),
        0,
        0,
        ALL,
    ),
    "crop_jitter_flip": (
        [
            fb.CenterCrop(15),
            fb.ColorJitter(contrast=(1.5, 1.5)),
            fb.RandomVerticalFlip(1.0),
            fb.RandomHorizontalFlip(1.0),
        ],
        v2.Compose(
            [
                v2.CenterCrop(15),
                v2.ColorJitter(contrast=(1.5, 1.5)),
                v2.RandomVerticalFlip(1.0),
                v2.RandomHorizontalFlip(1.0),
            ]
        ),
        0,
        0,
        COLOURS,
    ),
}
for _factor in (0.0, 0.5, 1.75):
    for _key in ("brightness", "contrast", "saturation"):
        FIXED[f"{_key}_{_factor}"] = (
            [fb.ColorJitter(**{_key: (_factor, _factor)})],
            v2.ColorJitter(**{_key: (_factor, _factor)}),
            0,
            0,
            COLOURS,
        )
for _shift in (-0.5, -0.125, 0.25, 0.5):
    FIXED[f"hue_{_shift}"] = (
        [fb.ColorJitter(hue=(_shift, _shift))],
        v2.ColorJitter(hue=(_shift, _shift)),
        1,
        1e-3,
        COLOURS,
    )
for _reading, _mode in READINGS.items():
    for _degrees in (0, 12.5, 30, -45, 90, 180, 270, 359):
        for _expand in (False, True):
            FIXED[f"rotation_{_degrees}_{_reading}_{_expand}"] = (
                [
                    fb.RandomRotation(
                        (_degrees, _degrees), interpolation=_reading, expand=_expand, fill=40
                    )
                ],
                v2.RandomRotation(
                    (_degrees, _degrees), interpolation=_mode, expand=_expand, fill=40
                ),
                0 if _reading == "nearest" else 1,
                # Turned by a right angle, places may all lie in the middle between two pixels.
                0 if _reading == "nearest" else 1e-2 if _degrees in (90, 270) else 1e-4,
                ALL,
            )
    FIXED[f"rotation_center_{_reading}"] = (
        [fb.RandomRotation((25, 25), interpolation=_reading, center=(3, 40.5), fill=(9, 99, 200))],
        v2.RandomRotation((25, 25), interpolation=_mode, center=(3, 40.5), fill=(9, 99, 200)),
        0 if _reading == "nearest" else 1,
        0 if _reading == "nearest" else 1e-4,
        ("RGB",),
    )
for _kernel, _sigma in ((3, 0.5), (5, 2.0), ((7, 3), 1.25), (1, 1.0), (15, 8.0)):
    FIXED[f"blur_{_kernel}_{_sigma}"] = (
        [fb.GaussianBlur(_kernel, (_sigma, _sigma))],
        v2.GaussianBlur(_kernel, (_sigma, _sigma)),
        1,
        5e-4,
        ALL,
    )
for _name, _ours, _theirs, _modes in (
    ("gray", fb.RandomGrayscale(1.0), v2.RandomGrayscale(1.0), COLOURS),
    ("invert", fb.RandomInvert(1.0), v2.RandomInvert(1.0), ALL),
    ("posterize", fb.RandomPosterize(3, 1.0), v2.RandomPosterize(3, 1.0), ALL),
    ("posterize_all", fb.RandomPosterize(8, 1.0), v2.RandomPosterize(8, 1.0), ALL),
    ("solarize", fb.RandomSolarize(100.5, 1.0), v2.RandomSolarize(100.5, 1.0), ALL),
    ("blunt", fb.RandomAdjustSharpness(0, 1.0), v2.RandomAdjustSharpness(0, 1.0), COLOURS),
    ("sharp", fb.RandomAdjustSharpness(2.5, 1.0), v2.RandomAdjustSharpness(2.5, 1.0), COLOURS),
    ("autocontrast", fb.RandomAutocontrast(1.0), v2.RandomAutocontrast(1.0), COLOURS),
    ("equalize", fb.RandomEqualize(1.0), v2.RandomEqualize(1.0), ALL),
):
    FIXED[f"random_{_name}"] = ([_ours], _theirs, int(_name == "gray"), 1e-4, _modes)
_affine = {
    "all": {"degrees": (20, 20), "scale": (0.75, 0.75), "shear": (10, 10, -5, -5)},
    "shear": {"degrees": (0, 0), "shear": (-25, -25)},
    "center": {"degrees": (-40, -40), "scale": (1.5, 1.5), "center": (4, 20.5)},
    "nothing": {"degrees": (0, 0), "translate": (0.0, 0.0)},
}
for (_name, _how), (_reading, _mode) in itertools.product(_affine.items(), READINGS.items()):
    FIXED[f"affine_{_name}_{_reading}"] = (
        [fb.RandomAffine(**_how, interpolation=_reading, fill=77)],
        v2.RandomAffine(**_how, interpolation=_mode, fill=77),
        0 if _reading == "nearest" else 1,
        0 if _reading == "nearest" else 1e-4,
        ALL,
    )


@pytest.mark.parametrize("name", FIXED)
def test_it_is_torchvisions(name: str, files: dict) -> None:
    ops, reference, limit, share, modes = FIXED[name]
    for mode in modes:
        path, pictures = files[mode]
        ours = run(path, ops, mode=mode)
        assert len(ours) == len(pictures)
        for image, pixels in zip(ours, pictures, strict=True):
            agree(image, reference(tensor(pixels)), limit, share)


@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [
        ("float32", torch.float32, 1e-6),
        ("float16", torch.float16, 2**-9),
        ("uint8", torch.uint8, 0),
    ],
)
@pytest.mark.parametrize("scale", [False, True])
def test_to_dtype(
    files: dict, name: str, dtype: torch.dtype, tolerance: float, scale: bool
) -> None:
    path, pictures = files["RGB"]
    ours = run(path, [fb.ToDtype(dtype, scale=scale)], mode="RGB", dtype=None)
    worded = run(path, [fb.ToDtype(name, scale)], mode="RGB", dtype=name)
    for image, again, pixels in zip(ours, worded, pictures, strict=True):
        expected = v2.ToDtype(dtype, scale=scale)(tensor(pixels))
        assert image.dtype == dtype
        assert torch.equal(image, again)
        assert (image.float() - expected.float()).abs().max().item() <= tolerance
    if dtype == torch.float32 and not scale:
        ours = run(path, [fb.ToDtype(dtype), fb.Normalize(100, 50)], mode="RGB", dtype=None)
        reference = v2.Compose([v2.ToDtype(dtype), v2.Normalize([100], [50])])
        for image, pixels in zip(ours, pictures, strict=True):
            assert (image - reference(tensor(pixels))).abs().max().item() <= 1e-6


def test_gray_output_has_one_channel(many: tuple, files: dict) -> None:
    path, pixels, _ = many
    dataset = fb.read_parquet(path)
    for mode in ("RGB", None):
        ops = [fb.CenterCrop(8), fb.Grayscale(), fb.ToDtype("float32", True), fb.Normalize(0.5, 2)]
        loader = dataset.map_image("image", ops, mode=mode).loader(batch_size=7, format="torch")
        batch = next(iter(loader))["image"]
        assert batch.shape == (7, 1, 8, 8)
        expected = F.rgb_to_grayscale(F.center_crop(tensor(pixels), [8, 8])).float() / 255
        assert (batch[0] - (expected - 0.5) / 2).abs().max().item() < 1e-6
    ops = [fb.CenterCrop(8), fb.Grayscale(3)]
    for mode in ("L", None):
        dataset = fb.read_parquet(files["L"][0])
        loader = dataset.map_image("image", ops, mode=mode).loader(batch_size=3, format="torch")
        assert next(iter(loader))["image"].shape == (3, 3, 8, 8)


@pytest.mark.parametrize("size", [(256, 224), (40, 30), (77, 76)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_a_crop_behind_an_exact_resize_changes_nothing(
    files: dict, size: tuple, interpolation: str
) -> None:
    path, _ = files["RGB"]
    edge, crop = size
    resized = run(path, [fb.Resize(edge, interpolation=interpolation)], mode="RGB")
    ops = [fb.Resize(edge, interpolation=interpolation), fb.CenterCrop(crop)]
    for image, whole in zip(run(path, ops, mode="RGB"), resized, strict=True):
        assert torch.equal(image, F.center_crop(whole, [crop, crop]))


@pytest.mark.parametrize("quality", ["fast", "exact"])
def test_jpegs_are_decoded_as_far_as_operators_look(tmp_path: Path, quality: str) -> None:
    """A blur before a crop sees beyond it; one behind a crop does not."""
    photos = pq.read_table(PHOTOS, columns=["image"])
    path = tmp_path / "photos.parquet"
    pq.write_table(photos, path)
    crop, blur = fb.CenterCrop(61), fb.GaussianBlur(23, (9.0, 9.0))
    references = {
        "before": ([blur, crop], [v2.GaussianBlur(23, (9.0, 9.0)), v2.CenterCrop(61)]),
        "behind": ([crop, blur], [v2.CenterCrop(61), v2.GaussianBlur(23, (9.0, 9.0))]),
        "contrast": (
            [fb.ColorJitter(contrast=(2, 2)), crop, fb.RandomVerticalFlip(1.0)],
            [v2.ColorJitter(contrast=(2, 2)), v2.CenterCrop(61), v2.RandomVerticalFlip(1.0)],
        ),
    }
    for ops, reference in references.values():
        for image, data in zip(
            run(str(path), ops, mode="RGB", quality=quality), photos["image"], strict=True
        ):
            pixels = np.array(Image.open(io.BytesIO(data.as_py())).convert("RGB"))
            difference = (image.int() - v2.Compose(reference)(tensor(pixels)).int()).abs().float()
            assert difference.mean().item() < (0.01 if quality == "exact" else 2.5)
            assert difference.max().item() <= (1 if quality == "exact" else 255)


def test_threads_change_nothing(files: dict) -> None:
    ops = [
        fb.RandomResizedCrop(32),
        fb.RandomVerticalFlip(),
        fb.TrivialAugmentWide(interpolation="bilinear"),
        fb.ColorJitter(0.4, 0.4, 0.4, 0.1),
        fb.RandomRotation(20),
        fb.GaussianBlur(5),
        fb.ToDtype("float32", scale=True),
        fb.Normalize(0.5, 0.25),
        fb.RandomErasing(value="random"),
    ]
    path, _ = files["RGB"]
    for quality in ("fast", "exact"):
        one, four = (
            run(path, ops, mode="RGB", dtype=None, quality=quality, num_threads=n) for n in (1, 4)
        )
        assert len({image.numpy().tobytes() for image in one}) > 1
        assert all(torch.equal(a, b) for a, b in zip(one, four, strict=True))


WRONG: dict[str, tuple[Callable, str]] = {
    "order": (lambda: [fb.Normalize(0.5, 1), fb.Pad(1)], "normalize stands before pad"),
    "to_dtype": (lambda: [fb.ToDtype("float32"), fb.Pad(1)], "to_dtype stands before pad"),
    "double": (lambda: [fb.ToDtype("float64")], "one of uint8, float16, bfloat16, float32"),
    "jitter": (lambda: [fb.ColorJitter(-0.5)], "not negative"),
    "hue": (lambda: [fb.ColorJitter(hue=0.7)], "within -0.5 to 0.5"),
    "kernel": (lambda: [fb.GaussianBlur(4)], "odd"),
    "sigma": (lambda: [fb.GaussianBlur(3, (2, 1))], "found [2, 1]"),
    "gray": (lambda: [fb.Grayscale(2)], "1 or 3"),
    "bicubic": (lambda: [fb.RandomRotation(9, "bicubic")], "nearest or bilinear"),
    "fill": (lambda: [fb.Pad(1, fill=(1, 2))], "fill has 2 values"),
    "byte": (lambda: [fb.Pad(1, fill=256)], "0 to 255"),
    "erased": (lambda: [fb.RandomErasing(value=-1)], "0 to 255, since it overwrites 8-bit pixels"),
    "noise": (lambda: [fb.RandomErasing(value="noise")], "random"),
    "magnitude": (lambda: [fb.RandAugment(magnitude=31)], "less than num_magnitude_bins, 31"),
    "translate": (lambda: [fb.RandomAffine(0, translate=(0.1, 1.5))], "from 0 to 1"),
    "shear": (lambda: [fb.RandomAffine(0, shear=90)], "within -89 to 89"),
    "bits": (lambda: [fb.RandomPosterize(9)], "0 to 8"),
    "threshold": (lambda: [fb.RandomSolarize(256)], "at most 255"),
    "sharpness": (lambda: [fb.RandomAdjustSharpness(-1)], "0 or more"),
    "bins": (lambda: [fb.TrivialAugmentWide(1)], "2"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_parameters_are_errors_with_their_place(many: tuple, name: str) -> None:
    make, text = WRONG[name]
    with pytest.raises(fb.InvalidInputError) as caught:
        fb.read_parquet(many[0]).map_image("image", make(), mode="RGB")
    assert text in str(caught.value)
    assert "steps[0].map_image.ops[" in str(caught.value)
    assert "hint" in str(caught.value)


def test_pictures_that_an_operator_cannot_take(files: dict, tmp_path: Path) -> None:
    dataset = fb.read_parquet(files["RGBA"][0])
    for op in (fb.ColorJitter(0.5), fb.Grayscale(), fb.RandAugment(), fb.TrivialAugmentWide()):
        with pytest.raises(fb.InvalidInputError, match="mode RGBA have 4"):
            dataset.map_image("image", [op], mode="RGBA")
        with pytest.raises(fb.ForebayError, match=r"1 or 3 channels, and this one has 4"):
            run(files["RGBA"][0], [op])
    tiny = parquet(tmp_path, [np.zeros((3, 2, 3), np.uint8)])
    with pytest.raises(fb.ForebayError, match="at least 3 x 3, and this one is 2 x 3"):
        run(tiny, [fb.GaussianBlur(5)], mode="RGB")
    disagrees = "to_dtype makes float32, and this map_image writes uint8"
    with pytest.raises(fb.InvalidInputError, match=disagrees):
        dataset.map_image("image", [fb.ToDtype("float32")], dtype="uint8")
