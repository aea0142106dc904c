"""What image operators draw: torchvision's choices, as often as torchvision makes them.

Every row of a file of one picture has draws of its own: the rows are a sample. The draws of a seed
do not change, so none of these tests flickers.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
v2 = pytest.importorskip("torchvision.transforms.v2")

from pictures import GRAYS, READINGS, SCENES, agree, parquet, run, tensor  # noqa: E402

import forebay as fb  # noqa: E402

F = v2.functional


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, np.ndarray, int]:
    """One picture, many times: every row has draws of its own."""
    pixels, rows = SCENES[0][:40, :50], 600
    return parquet(tmp_path_factory.mktemp("many"), [pixels] * rows), pixels, rows


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
        image = tensor(pixels)
        for step in order:
            image = steps[step](image)
        candidates[order] = image
    # A 1 of difference behind the hue is 1.5 times that behind the brightness.
    found = Counter(_nearest(image, candidates, 2) for image in run(path, ops, mode="RGB"))
    _frequencies(found, dict.fromkeys(candidates, 1 / 24), rows)


def test_color_jitter_draws_uniformly(many: tuple) -> None:
    path, pixels, rows = many
    images = run(path, [fb.ColorJitter(brightness=0.4)], mode="RGB")
    means = np.array([image.float().mean().item() for image in images])
    low, high = (F.adjust_brightness(tensor(pixels), f).float().mean().item() for f in (0.6, 1.4))
    assert low <= means.min() < low + 5
    assert high - 5 < means.max() <= high
    # Brightness is linear but for clipping: the middle factor lies in the middle.
    middle = F.adjust_brightness(tensor(pixels), 1.0).float().mean().item()
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
    possible = _augmentations(tensor(pixels), wide, bins, reading, fill)
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
    images = run(path, [op], mode="RGB", seed=5)
    found = Counter(_nearest(image, distinct, limit) for image in images)
    # Rare ones together, as the test wants them: 5 at least.
    common = {k: p for k, p in probabilities.items() if rows * p >= 5}
    rare = sum(p for k, p in probabilities.items() if k not in common)
    merged = Counter("rare" if k not in common else k for k in found.elements())
    _frequencies(merged, common | {"rare": rare} if rare > 1e-9 else common, rows)


def test_rand_augment_does_one_after_the_other(many: tuple) -> None:
    path, pixels, _ = many
    image = tensor(pixels)
    once = {k: m() for k, (_, m) in _augmentations(image, False, 31, "nearest", None).items()}
    pairs = {}
    for key, first in once.items():
        for other, (_, make) in _augmentations(first, False, 31, "nearest", None).items():
            pairs[key, other] = make()
    images = run(path, [fb.RandAugment()], mode="RGB")[:60]
    assert len({_nearest(image, pairs, 0) for image in images}) > 30
    nothing = run(path, [fb.RandAugment(0)], mode="RGB")
    assert all(torch.equal(image, tensor(pixels)) for image in nothing)


def test_augmentations_of_gray_pictures(tmp_path: Path) -> None:
    path = parquet(tmp_path, GRAYS)
    for seed in range(12):
        ours = run(path, [fb.RandAugment(1)], mode="L", seed=seed)
        for image, pixels in zip(ours, GRAYS, strict=True):
            possible = _augmentations(tensor(pixels), False, 31, "nearest", None)
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
    path = parquet(tmp_path, [np.full((height, width, 3), 200, np.uint8)] * rows)
    images = run(path, [fb.RandomErasing(0.7, value=(1, 2, 3))], mode="RGB", layout=layout)
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
    expected = reference(tensor(pixels))
    options = {"mode": "RGB", "dtype": None, "layout": layout}
    for value, written in ((-7.5, [-7.5] * 3), ([5, -6, 7], [5, -6, 7])):
        images = run(path, [*tail, fb.RandomErasing(1.0, value=value)], **options)
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
    for image in run(path, ops, **options)[:20]:
        image = image.permute(2, 0, 1) if layout == "HWC" else image
        erased = (image[0] - (0.25 - mean[0]) / std[0]).abs() < 1e-6
        assert erased.any()


def test_erasing_with_noise(many: tuple) -> None:
    path, pixels, _ = many
    ops = [
        fb.ToDtype("float32", scale=True),
        fb.RandomErasing(1.0, scale=(0.3, 0.3), ratio=(1, 1), value="random"),
    ]
    images = run(path, ops, mode="RGB", dtype=None)
    expected = v2.ToDtype(torch.float32, scale=True)(tensor(pixels))
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
    again = run(path, ops, mode="RGB", dtype=None)
    assert all(torch.equal(a, b) for a, b in zip(images, again, strict=True))


def test_shifts_are_whole_pixels_within_their_share(many: tuple) -> None:
    path, pixels, _ = many
    image = tensor(pixels)
    places = itertools.product(range(-5, 6), range(-4, 5))
    how = {"angle": 0.0, "scale": 1.0, "shear": [0.0, 0.0], "fill": 9}
    shifted = {(x, y): F.affine(image, translate=[x, y], **how) for x, y in places}
    images = run(path, [fb.RandomAffine(0, translate=(0.1, 0.1), fill=9)], mode="RGB")
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
    image = tensor(pixels)
    flips = {"as it was": image, "upside down": image.flip(1)}
    images = run(path, [fb.RandomVerticalFlip(0.25)], mode="RGB")
    found = Counter(_nearest(image, flips, 0) for image in images)
    _frequencies(found, {"as it was": 0.75, "upside down": 0.25}, rows)
    grays = {"as it was": image, "gray": F.rgb_to_grayscale(image, 3)}
    images = run(path, [fb.RandomGrayscale()], mode="RGB")
    found = Counter(_nearest(image, grays, 0) for image in images)
    _frequencies(found, {"as it was": 0.9, "gray": 0.1}, rows)
    # Angles that are close have the same nearest pixels.
    images = run(path, [fb.RandomRotation(45)], mode="RGB")
    assert len({image.numpy().tobytes() for image in images}) > 0.9 * rows


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (2, 2)])
def test_tiny_pictures(tmp_path: Path, shape: tuple) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (*shape, 3), dtype=np.uint8)
    path = parquet(tmp_path, [pixels] * 40)
    image = tensor(pixels)
    possible = _augmentations(image, False, 31, "nearest", None)
    candidates = {key: make() for key, (_, make) in possible.items()}
    for ours in run(path, [fb.RandAugment(1)], mode="RGB"):
        _nearest(ours, candidates, 0)
    for ours in run(path, [fb.RandomRotation((30, 30), expand=True)], mode="RGB")[:1]:
        agree(ours, F.rotate(image, 30, expand=True, fill=0))
    run(path, [fb.ColorJitter(0.9, 0.9, 0.9, 0.5), fb.RandomErasing(1.0)], mode="RGB")
