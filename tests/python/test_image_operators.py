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
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")
InterpolationMode = pytest.importorskip("torchvision.transforms").InterpolationMode
v2 = pytest.importorskip("torchvision.transforms.v2")

import forebay as fb  # noqa: E402

F = v2.functional
PHOTOS = Path(__file__).resolve().parents[2] / "examples" / "data" / "photos"
READINGS = {"nearest": InterpolationMode.NEAREST, "bilinear": InterpolationMode.BILINEAR}


def _scenes() -> list[np.ndarray]:
    photos = pq.read_table(PHOTOS, columns=["image"])["image"].to_pylist()
    sizes = [(97, 131), (120, 120), (64, 30), (200, 161)]
    scenes = []
    for data, (h, w) in zip(photos, sizes, strict=False):
        pixels = np.array(Image.open(io.BytesIO(data)).convert("RGB"))
        scenes.append(pixels[20 : 20 + h, 30 : 30 + w])
    noise = np.random.default_rng(1).integers(0, 256, (61, 80, 3), dtype=np.uint8)
    # Few values, none of them near the ends: histograms with holes.
    low = (noise // 64 * 20 + 60).astype(np.uint8)
    return [*scenes, noise, low, np.full((16, 17, 3), 90, np.uint8)]


SCENES = _scenes()
GRAYS = [scene[..., 1].copy() for scene in SCENES]
OPAQUE = [
    np.concatenate([scene, np.ascontiguousarray(scene[::-1, :, :1])], axis=2) for scene in SCENES
]


def _tensor(pixels: np.ndarray) -> torch.Tensor:
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1).contiguous()


def _file(folder: Path, pictures: list[np.ndarray]) -> str:
    def png(pixels: np.ndarray) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
        return buffer.getvalue()

    path = folder / "pictures.parquet"
    pq.write_table(pa.table({"image": [png(p) for p in pictures]}), path, row_group_size=50)
    return str(path)


def _run(path: str, ops: list, *, seed: int = 0, num_threads: int = 2, **options) -> list:
    options = {"dtype": "uint8", "quality": "exact", **options}
    dataset = fb.read_parquet(path).map_image("image", ops, **options)
    loader = dataset.loader(
        batch_size=16,
        shuffle="none",
        epoch_end="partial",
        format="torch",
        seed=seed,
        num_threads=num_threads,
    )
    # The slab returns to its pool with the last tensor over it; keep copies.
    return [image.clone() for batch in loader for image in batch["image"]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, list[np.ndarray]]]:
    kinds = {"RGB": SCENES, "L": GRAYS, "RGBA": OPAQUE}
    return {
        mode: (_file(tmp_path_factory.mktemp(mode), pictures), pictures)
        for mode, pictures in kinds.items()
    }


def _agree(ours: torch.Tensor, expected: torch.Tensor, limit: int = 0, share: float = 0.0) -> None:
    assert ours.shape == expected.shape
    assert ours.dtype == expected.dtype
    difference = (ours.int() - expected.int()).abs()
    assert difference.max().item() <= limit
    assert (difference > 0).float().mean().item() <= share


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
        ours = _run(path, ops, mode=mode)
        assert len(ours) == len(pictures)
        for image, pixels in zip(ours, pictures, strict=True):
            _agree(image, reference(_tensor(pixels)), limit, share)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, np.ndarray, int]:
    """One picture, many times: every row has draws of its own."""
    pixels, rows = SCENES[0][:40, :50], 600
    return _file(tmp_path_factory.mktemp("many"), [pixels] * rows), pixels, rows


def _frequencies(found: Counter, expected: dict, rows: int) -> None:
    """Chi-square against these probabilities, at a level of about 1 in 10,000.

    The draws of a seed do not change, so this does not flicker.
    """
    assert set(found) <= set(expected)
    chi = sum((found[k] - rows * p) ** 2 / (rows * p) for k, p in expected.items())
    degrees = len(expected) - 1
    # Wilson and Hilferty's approximation of the quantile.
    limit = degrees * (1 - 2 / (9 * degrees) + 3.72 * math.sqrt(2 / (9 * degrees))) ** 3
    assert chi < limit


def _nearest(image: torch.Tensor, candidates: dict, limit: int) -> object:
    """The candidate that the image is, within a limit."""
    found = {}
    for key, candidate in candidates.items():
        if candidate.shape == image.shape:
            found[key] = (candidate.int() - image.int()).abs().float()
    key = min(found, key=lambda k: found[k].mean().item())
    assert found[key].max().item() <= limit
    return key


def test_color_jitter_in_every_order(many: tuple) -> None:
    path, pixels, rows = many
    factors = {"brightness": 1.5, "contrast": 0.625, "saturation": 1.375, "hue": 0.125}
    ops = [fb.ColorJitter(**{key: (value, value) for key, value in factors.items()})]
    steps = [
        lambda x: F.adjust_brightness(x, 1.5),
        lambda x: F.adjust_contrast(x, 0.625),
        lambda x: F.adjust_saturation(x, 1.375),
        lambda x: F.adjust_hue(x, 0.125),
    ]
    candidates = {}
    for order in itertools.permutations(range(4)):
        image = _tensor(pixels)
        for step in order:
            image = steps[step](image)
        candidates[order] = image
    # A 1 of difference behind the hue is 1.5 times that behind the brightness.
    found = Counter(_nearest(image, candidates, 2) for image in _run(path, ops, mode="RGB"))
    _frequencies(found, dict.fromkeys(candidates, 1 / 24), rows)


def test_color_jitter_draws_uniformly(many: tuple) -> None:
    path, pixels, rows = many
    images = _run(path, [fb.ColorJitter(brightness=0.4)], mode="RGB")
    means = np.array([image.float().mean().item() for image in images])
    low, high = (F.adjust_brightness(_tensor(pixels), f).float().mean().item() for f in (0.6, 1.4))
    assert low <= means.min() < low + 5
    assert high - 5 < means.max() <= high
    # Brightness is linear but for clipping: the middle factor lies in the middle.
    middle = F.adjust_brightness(_tensor(pixels), 1.0).float().mean().item()
    assert abs((means < middle).mean() - 0.5) < 4 * 0.5 / math.sqrt(rows)


def _line(end: float, bins: int, start: float = 0.0) -> torch.Tensor:
    return torch.linspace(start, end, bins)


def _augmentations(
    image: torch.Tensor, wide: bool, bins: int, reading: str, fill: list | None
) -> dict[tuple, tuple[float, Callable]]:
    """What torchvision's automatic augmentations can do: probability and result of each."""
    _, h, w = image.shape
    how = {"interpolation": READINGS[reading], "fill": fill}

    def affine(translate: tuple = (0, 0), shear: tuple = (0.0, 0.0), **more) -> torch.Tensor:
        where = {"angle": 0.0, "translate": list(translate), "scale": 1.0, "shear": list(shear)}
        return F.affine(image, **where, **how, **more)

    def degrees(m: float) -> float:
        return math.degrees(math.atan(m))

    shear, turn, factor, bits = (0.99, 135.0, 0.99, 6) if wide else (0.3, 30.0, 0.9, 4)
    shift = (32.0, 32.0) if wide else (150.0 / 331.0 * w, 150.0 / 331.0 * h)
    signed = {
        "shear_x": (shear, lambda m: affine(shear=(degrees(m), 0.0), center=[0, 0])),
        "shear_y": (shear, lambda m: affine(shear=(0.0, degrees(m)), center=[0, 0])),
        "translate_x": (shift[0], lambda m: affine((int(m), 0))),
        "translate_y": (shift[1], lambda m: affine((0, int(m)))),
        "rotate": (turn, lambda m: F.rotate(image, m, **how)),
        "brightness": (factor, lambda m: F.adjust_brightness(image, 1 + m)),
        "color": (factor, lambda m: F.adjust_saturation(image, 1 + m)),
        "contrast": (factor, lambda m: F.adjust_contrast(image, 1 + m)),
        "sharpness": (factor, lambda m: F.adjust_sharpness(image, 1 + m)),
    }
    strengths = range(bins) if wide else [9]
    each = 1 / 14 / len(strengths)
    out: dict[tuple, tuple[float, Callable]] = {("identity",): (1 / 14, lambda: image)}
    for name, (end, make) in signed.items():
        for at, sign in itertools.product(strengths, (1, -1)):
            m = sign * float(_line(end, bins)[at])
            out[name, at, sign] = (each / 2, lambda make=make, m=m: make(m))
    for at in strengths:
        kept = int((8 - (torch.arange(bins) / ((bins - 1) / bits))).round().int()[at])
        threshold = 255.0 * float(_line(0.0, bins, 1.0)[at])
        out["posterize", at] = (each, lambda kept=kept: F.posterize(image, kept))
        out["solarize", at] = (each, lambda t=threshold: F.solarize(image, t))
    out["autocontrast",] = (1 / 14, lambda: F.autocontrast(image))
    out["equalize",] = (1 / 14, lambda: F.equalize(image))
    return out


@pytest.mark.parametrize("reading", ["nearest", "bilinear"])
@pytest.mark.parametrize("wide", [False, True], ids=["rand_augment", "trivial_augment_wide"])
def test_an_augmentation_is_one_of_torchvisions(many: tuple, wide: bool, reading: str) -> None:
    path, pixels, rows = many
    fill = None if reading == "nearest" else [100]
    bins = 5 if wide else 31
    op = (
        fb.TrivialAugmentWide(bins, interpolation=reading, fill=fill)
        if wide
        else fb.RandAugment(1, interpolation=reading, fill=fill)
    )
    possible = _augmentations(_tensor(pixels), wide, bins, reading, fill)
    candidates = {key: make() for key, (_, make) in possible.items()}
    # What looks the same is the same: strengths of 0 are the identity.
    groups: dict[bytes, tuple] = {}
    names, probabilities = {}, Counter()
    for key, candidate in candidates.items():
        group = groups.setdefault(candidate.numpy().tobytes(), key)
        names[key] = group
        probabilities[group] += possible[key][0]
    distinct = {key: candidates[key] for key in set(names.values())}
    limit = 0 if reading == "nearest" else 1
    images = _run(path, [op], mode="RGB", seed=5)
    found = Counter(_nearest(image, distinct, limit) for image in images)
    # Rare ones together, as the test wants them: 5 at least.
    common = {k: p for k, p in probabilities.items() if rows * p >= 5}
    rare = sum(p for k, p in probabilities.items() if k not in common)
    merged = Counter("rare" if k not in common else k for k in found.elements())
    _frequencies(merged, common | {"rare": rare} if rare > 1e-9 else common, rows)


def test_rand_augment_does_one_after_the_other(many: tuple) -> None:
    path, pixels, _ = many
    image = _tensor(pixels)
    once = {k: m() for k, (_, m) in _augmentations(image, False, 31, "nearest", None).items()}
    pairs = {}
    for key, first in once.items():
        for other, (_, make) in _augmentations(first, False, 31, "nearest", None).items():
            pairs[key, other] = make()
    images = _run(path, [fb.RandAugment()], mode="RGB")[:60]
    assert len({_nearest(image, pairs, 0) for image in images}) > 30
    nothing = _run(path, [fb.RandAugment(0)], mode="RGB")
    assert all(torch.equal(image, _tensor(pixels)) for image in nothing)


def test_augmentations_of_gray_pictures(files: dict) -> None:
    path, pictures = files["L"]
    for seed in range(12):
        ours = _run(path, [fb.RandAugment(1)], mode="L", seed=seed)
        for image, pixels in zip(ours, pictures, strict=True):
            possible = _augmentations(_tensor(pixels), False, 31, "nearest", None)
            _nearest(image, {key: make() for key, (_, make) in possible.items()}, 0)


def _rectangle(erased: torch.Tensor) -> tuple[int, int, int, int] | None:
    """Left, top, width and height of what is true; it must be a full rectangle."""
    rows, columns = erased.any(1).nonzero()[:, 0], erased.any(0).nonzero()[:, 0]
    if len(rows) == 0:
        return None
    y, x = rows.min().item(), columns.min().item()
    h, w = rows.max().item() - y + 1, columns.max().item() - x + 1
    assert erased.sum().item() == h * w
    return x, y, w, h


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_erasing_has_torchvisions_distribution(tmp_path: Path, layout: str) -> None:
    rows, height, width = 1000, 40, 60
    path = _file(tmp_path, [np.full((height, width, 3), 200, np.uint8)] * rows)
    images = _run(path, [fb.RandomErasing(0.7, value=(1, 2, 3))], mode="RGB", layout=layout)
    ours = []
    for image in images:
        image = image.permute(2, 0, 1) if layout == "HWC" else image
        erased = image[0] == 1
        for channel, value in enumerate((1, 2, 3)):
            assert torch.equal(image[channel] == value, erased)
            assert set(image[channel].unique().tolist()) <= {value, 200}
        ours.append(_rectangle(erased))
    torch.manual_seed(0)
    transform = v2.RandomErasing()
    blank = torch.empty(3, height, width)
    theirs = []
    for _ in range(3 * rows):
        p = transform.make_params([blank])
        theirs.append((p["j"], p["i"], p["w"], p["h"]) if p["v"] is not None else None)
    assert abs(sum(r is not None for r in ours) / rows - 0.7) < 4 * math.sqrt(0.21 / rows) + 0.01

    def numbers(boxes: list) -> np.ndarray:
        there = np.array([box for box in boxes if box is not None], dtype=float)
        x, y, w, h = there.T
        return np.stack([w * h, np.log(h / w), x / (width - w), y / (height - h)])

    # Kolmogorov-Smirnov at a level of 1 in 10,000, for area, aspect and place.
    for a, b in zip(numbers(ours), numbers(theirs), strict=True):
        at = np.sort(np.concatenate([a, b]))
        share_a = np.searchsorted(np.sort(a), at, side="right") / len(a)
        share_b = np.searchsorted(np.sort(b), at, side="right") / len(b)
        assert np.abs(share_a - share_b).max() < 2.23 * math.sqrt(1 / len(a) + 1 / len(b))


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_erasing_behind_normalize(many: tuple, layout: str) -> None:
    path, pixels, _ = many
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    tail = [fb.ToDtype(torch.float32, scale=True), fb.Normalize(mean, std)]
    reference = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)])
    expected = reference(_tensor(pixels))
    options = {"mode": "RGB", "dtype": None, "layout": layout}
    for value, written in ((-7.5, [-7.5] * 3), ([5, -6, 7], [5, -6, 7])):
        images = _run(path, [*tail, fb.RandomErasing(1.0, value=value)], **options)
        erased_rows = 0
        for image in images[:100]:
            image = image.permute(2, 0, 1) if layout == "HWC" else image
            box = _rectangle(image[0] == written[0])
            rest = torch.ones(image.shape[1:], dtype=torch.bool)
            if box is not None:
                x, y, w, h = box
                erased_rows += 1
                rest[y : y + h, x : x + w] = False
                for channel, v in enumerate(written):
                    assert torch.all(image[channel, y : y + h, x : x + w] == v)
            assert (image - expected)[:, rest].abs().max().item() < 1e-6
        assert erased_rows > 95
    # Before Normalize a value is normalised with the pixels.
    ops = [tail[0], fb.RandomErasing(1.0, value=0.25), tail[1]]
    for image in _run(path, ops, **options)[:20]:
        image = image.permute(2, 0, 1) if layout == "HWC" else image
        erased = (image[0] - (0.25 - mean[0]) / std[0]).abs() < 1e-6
        assert erased.any()


def test_erasing_with_noise(many: tuple) -> None:
    path, pixels, _ = many
    ops = [
        fb.ToDtype("float32", scale=True),
        fb.RandomErasing(1.0, scale=(0.3, 0.3), ratio=(1, 1), value="random"),
    ]
    images = _run(path, ops, mode="RGB", dtype=None)
    expected = v2.ToDtype(torch.float32, scale=True)(_tensor(pixels))
    noise = []
    for image in images[:100]:
        erased = (image - expected).abs().amax(0) > 1e-6
        box = _rectangle(erased)
        assert box is not None
        x, y, w, h = box
        noise.append(image[:, y : y + h, x : x + w].flatten())
    values = torch.cat(noise)
    n = len(values)
    assert n > 100_000
    assert values.mean().abs().item() < 4 / math.sqrt(n)
    assert abs(values.std().item() - 1) < 4 / math.sqrt(2 * n)
    assert abs((values.abs() > 1.959964).float().mean().item() - 0.05) < 0.004
    # Every row has noise of its own, and keeps it.
    assert not torch.equal(noise[0][:100], noise[1][:100])
    again = _run(path, ops, mode="RGB", dtype=None)
    assert all(torch.equal(a, b) for a, b in zip(images, again, strict=True))


def test_shifts_are_whole_pixels_within_their_share(many: tuple) -> None:
    path, pixels, _ = many
    image = _tensor(pixels)
    places = itertools.product(range(-5, 6), range(-4, 5))
    how = {"angle": 0.0, "scale": 1.0, "shear": [0.0, 0.0], "fill": 9}
    shifted = {(x, y): F.affine(image, translate=[x, y], **how) for x, y in places}
    images = _run(path, [fb.RandomAffine(0, translate=(0.1, 0.1), fill=9)], mode="RGB")
    found = Counter(_nearest(image, shifted, 0) for image in images)
    # Rounded, the outermost shifts are half as frequent as the others.
    along_x, along_y = (
        Counter(x for x, _ in found.elements()),
        Counter(y for _, y in found.elements()),
    )
    share = {n: 0.05 if abs(n) == 5 else 0.1 for n in range(-5, 6)}
    _frequencies(along_x, share, len(images))
    share = {n: 0.0625 if abs(n) == 4 else 0.125 for n in range(-4, 5)}
    _frequencies(along_y, share, len(images))


def test_flips_and_angles_are_as_frequent_as_said(many: tuple) -> None:
    path, pixels, rows = many
    image = _tensor(pixels)
    flips = {"as it was": image, "upside down": image.flip(1)}
    images = _run(path, [fb.RandomVerticalFlip(0.25)], mode="RGB")
    found = Counter(_nearest(image, flips, 0) for image in images)
    _frequencies(found, {"as it was": 0.75, "upside down": 0.25}, rows)
    grays = {"as it was": image, "gray": F.rgb_to_grayscale(image, 3)}
    images = _run(path, [fb.RandomGrayscale()], mode="RGB")
    found = Counter(_nearest(image, grays, 0) for image in images)
    _frequencies(found, {"as it was": 0.9, "gray": 0.1}, rows)
    # Angles that are close have the same nearest pixels.
    images = _run(path, [fb.RandomRotation(45)], mode="RGB")
    assert len({image.numpy().tobytes() for image in images}) > 0.9 * rows


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
    ours = _run(path, [fb.ToDtype(dtype, scale=scale)], mode="RGB", dtype=None)
    worded = _run(path, [fb.ToDtype(name, scale)], mode="RGB", dtype=name)
    for image, again, pixels in zip(ours, worded, pictures, strict=True):
        expected = v2.ToDtype(dtype, scale=scale)(_tensor(pixels))
        assert image.dtype == dtype
        assert torch.equal(image, again)
        assert (image.float() - expected.float()).abs().max().item() <= tolerance
    if dtype == torch.float32 and not scale:
        ours = _run(path, [fb.ToDtype(dtype), fb.Normalize(100, 50)], mode="RGB", dtype=None)
        reference = v2.Compose([v2.ToDtype(dtype), v2.Normalize([100], [50])])
        for image, pixels in zip(ours, pictures, strict=True):
            assert (image - reference(_tensor(pixels))).abs().max().item() <= 1e-6


def test_gray_output_has_one_channel(many: tuple, files: dict) -> None:
    path, pixels, _ = many
    dataset = fb.read_parquet(path)
    for mode in ("RGB", None):
        ops = [fb.CenterCrop(8), fb.Grayscale(), fb.ToDtype("float32", True), fb.Normalize(0.5, 2)]
        loader = dataset.map_image("image", ops, mode=mode).loader(batch_size=7, format="torch")
        batch = next(iter(loader))["image"]
        assert batch.shape == (7, 1, 8, 8)
        expected = F.rgb_to_grayscale(F.center_crop(_tensor(pixels), [8, 8])).float() / 255
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
    resized = _run(path, [fb.Resize(edge, interpolation=interpolation)], mode="RGB")
    ops = [fb.Resize(edge, interpolation=interpolation), fb.CenterCrop(crop)]
    for image, whole in zip(_run(path, ops, mode="RGB"), resized, strict=True):
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
            _run(str(path), ops, mode="RGB", quality=quality), photos["image"], strict=True
        ):
            pixels = np.array(Image.open(io.BytesIO(data.as_py())).convert("RGB"))
            difference = (image.int() - v2.Compose(reference)(_tensor(pixels)).int()).abs().float()
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
            _run(path, ops, mode="RGB", dtype=None, quality=quality, num_threads=n) for n in (1, 4)
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
            _run(files["RGBA"][0], [op])
    tiny = _file(tmp_path, [np.zeros((3, 2, 3), np.uint8)])
    with pytest.raises(fb.ForebayError, match="at least 3 x 3, and this one is 2 x 3"):
        _run(tiny, [fb.GaussianBlur(5)], mode="RGB")
    disagrees = "to_dtype makes float32, and this map_image writes uint8"
    with pytest.raises(fb.InvalidInputError, match=disagrees):
        dataset.map_image("image", [fb.ToDtype("float32")], dtype="uint8")


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (2, 2)])
def test_tiny_pictures(tmp_path: Path, shape: tuple) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (*shape, 3), dtype=np.uint8)
    path = _file(tmp_path, [pixels] * 40)
    image = _tensor(pixels)
    possible = _augmentations(image, False, 31, "nearest", None)
    candidates = {key: make() for key, (_, make) in possible.items()}
    for ours in _run(path, [fb.RandAugment(1)], mode="RGB"):
        _nearest(ours, candidates, 0)
    for ours in _run(path, [fb.RandomRotation((30, 30), expand=True)], mode="RGB")[:1]:
        _agree(ours, F.rotate(image, 30, expand=True, fill=0))
    _run(path, [fb.ColorJitter(0.9, 0.9, 0.9, 0.5), fb.RandomErasing(1.0)], mode="RGB")
