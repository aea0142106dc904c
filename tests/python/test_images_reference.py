"""Images against torchvision: a loader yields what torchvision makes of the same file.

The photographs go into a Parquet file, come out of ``forebay`` as torch tensors, and are compared
with ``torchvision.transforms.v2`` on the pixels that Pillow decodes. No draw is involved but in the
last test, which compares the distribution of ``RandomResizedCrop`` with torchvision's.

Tolerances, in units of 1/255:

- ``quality="exact"``: decoding is Pillow's to the bit; a resize differs by at most 2 (torchvision
  and Forebay round their filter weights differently).
- ``quality="fast"``: a mean below 2.5 for every photograph (faster colour upsampling; for strong
  reductions shrinking inside the decoder).
"""

from __future__ import annotations

import io
import os
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

MEAN = [0.485, 0.456, 0.406]
STD = [0.229, 0.224, 0.225]
EXACT_MAX = 2
FAST_MEAN = 2.5


def _photo_paths() -> list[Path]:
    root = os.environ.get("FOREBAY_TEST_DATA")
    data = Path(root) if root else Path(__file__).resolve().parents[3] / "shared" / "data"
    # Every eighth: 25 photographs of the 200, all sizes among them.
    return sorted((data / "photos").glob("*.[jJ][pP]*[gG]"))[::8]


@pytest.fixture(scope="module")
def photos() -> list[bytes]:
    paths = _photo_paths()
    if not paths:
        pytest.skip("the photographs of ../shared/data are not there")
    return [path.read_bytes() for path in paths]


@pytest.fixture(scope="module")
def photo_file(photos: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("photos") / "photos.parquet"
    table = pa.table({"image": pa.array(photos, pa.binary()), "id": pa.array(range(len(photos)))})
    pq.write_table(table, path, row_group_size=10)
    return str(path)


def _pixels(data: bytes) -> torch.Tensor:
    """Decode as Pillow does, to a ``uint8`` tensor of [3, height, width]."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def _ours(path: str, ops: list, *, batch_size: int = 8, **options) -> list[torch.Tensor]:
    """Every image of the file, in file order, through ``map_image`` and a loader."""
    dataset = fb.read_parquet(path).map_image("image", ops, mode="RGB", **options)
    loader = dataset.loader(
        batch_size=batch_size, shuffle="none", epoch_end="partial", format="torch"
    )
    images, ids = [], []
    for batch in loader:
        # The slab returns to its pool with the last tensor over it; keep copies.
        images.extend(image.clone() for image in batch["image"])
        ids.extend(batch["id"].tolist())
    assert ids == list(range(len(ids)))
    return images


CHAINS = {
    "resize_square": (
        [lambda: fb.Resize([224, 224])],
        v2.Resize([224, 224], antialias=True),
    ),
    "resize_wide": (
        [lambda: fb.Resize([100, 317])],
        v2.Resize([100, 317], antialias=True),
    ),
    "resize_enlarging": (
        [lambda: fb.Resize([700, 600])],
        v2.Resize([700, 600], antialias=True),
    ),
    "resize_bicubic": (
        [lambda: fb.Resize([224, 224], interpolation="bicubic")],
        v2.Resize([224, 224], interpolation=InterpolationMode.BICUBIC, antialias=True),
    ),
    "resize_nearest": (
        [lambda: fb.Resize([224, 224], interpolation="nearest")],
        v2.Resize([224, 224], interpolation=InterpolationMode.NEAREST),
    ),
    "center_crop": (
        [lambda: fb.CenterCrop(200)],
        v2.CenterCrop(200),
    ),
    "center_crop_padded": (
        [lambda: fb.CenterCrop((601, 1203))],
        v2.CenterCrop((601, 1203)),
    ),
    "resize_center_crop": (
        [lambda: fb.Resize(256), lambda: fb.CenterCrop(224)],
        v2.Compose([v2.Resize(256, antialias=True), v2.CenterCrop(224)]),
    ),
    "resize_max_size_center_crop": (
        [lambda: fb.Resize(256, max_size=300), lambda: fb.CenterCrop(224)],
        v2.Compose([v2.Resize(256, max_size=300, antialias=True), v2.CenterCrop(224)]),
    ),
}
# Pure cuts and nearest pixels do not compute anything: not even a 1 of difference is allowed.
EXACT_TO_THE_BIT = {"center_crop", "center_crop_padded", "resize_nearest"}


@pytest.mark.parametrize("name", CHAINS)
def test_exact_is_torchvision(name: str, photos: list[bytes], photo_file: str) -> None:
    ops, reference = CHAINS[name]
    ours = _ours(photo_file, [op() for op in ops], dtype="uint8", layout="CHW", quality="exact")
    assert len(ours) == len(photos)
    limit = 0 if name in EXACT_TO_THE_BIT else EXACT_MAX
    for index, (image, data) in enumerate(zip(ours, photos, strict=True)):
        expected = reference(_pixels(data))
        assert image.dtype == torch.uint8
        assert image.shape == expected.shape, f"photograph {index}"
        difference = (image.int() - expected.int()).abs()
        assert difference.max().item() <= limit, f"photograph {index}"


@pytest.mark.parametrize("name", ["resize_square", "center_crop", "resize_center_crop"])
def test_fast_stays_near_torchvision(name: str, photos: list[bytes], photo_file: str) -> None:
    ops, reference = CHAINS[name]
    ours = _ours(photo_file, [op() for op in ops], dtype="uint8", layout="CHW", quality="fast")
    for index, (image, data) in enumerate(zip(ours, photos, strict=True)):
        expected = reference(_pixels(data))
        assert image.shape == expected.shape
        mean = (image.int() - expected.int()).abs().float().mean().item()
        assert mean < FAST_MEAN, f"photograph {index}: {mean}"


@pytest.mark.parametrize(
    ("dtype", "torch_dtype", "tolerance"),
    [
        # One step of 1/255 in a pixel is 1/255/0.224 here, hence 2 of them for EXACT_MAX; on top
        # comes the rounding of the type at values below 4.
        ("float32", torch.float32, 1e-6),
        ("float16", torch.float16, 2**-9),
        ("bfloat16", torch.bfloat16, 2**-6),
    ],
)
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_normalized_floats(
    dtype: str,
    torch_dtype: torch.dtype,
    tolerance: float,
    layout: str,
    photos: list[bytes],
    photo_file: str,
) -> None:
    ours = _ours(
        photo_file,
        [fb.CenterCrop(200), fb.Normalize(MEAN, STD)],
        dtype=dtype,
        layout=layout,
        quality="exact",
    )
    reference = v2.Compose(
        [v2.CenterCrop(200), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    )
    for image, data in zip(ours, photos, strict=True):
        expected = reference(_pixels(data))
        if layout == "HWC":
            expected = expected.permute(1, 2, 0)
        assert image.dtype == torch_dtype
        assert image.shape == expected.shape
        assert (image.float() - expected).abs().max().item() <= tolerance


def test_scaled_without_normalize(photos: list[bytes], photo_file: str) -> None:
    ours = _ours(photo_file, [fb.CenterCrop(64)], quality="exact")
    reference = v2.Compose([v2.CenterCrop(64), v2.ToDtype(torch.float32, scale=True)])
    for image, data in zip(ours, photos, strict=True):
        assert image.dtype == torch.float32
        # torchvision multiplies by 1/255, which is one rounding off the division that this is.
        assert (image - reference(_pixels(data))).abs().max().item() <= 2**-24
        assert torch.equal(image, v2.functional.center_crop(_pixels(data), [64, 64]) / 255)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_pillows(orientation: int, tmp_path: Path) -> None:
    from PIL import ImageOps

    pixels = np.add.outer(np.arange(48) * 4, np.arange(64) * 1)[..., None] % 256
    pixels = np.concatenate([pixels, 255 - pixels, pixels // 2], axis=2).astype(np.uint8)
    exif = Image.Exif()
    exif[274] = orientation
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=95, exif=exif)
    path = tmp_path / "one.parquet"
    pq.write_table(pa.table({"image": [buffer.getvalue()], "id": [0]}), path)
    (ours,) = _ours(str(path), [], dtype="uint8", layout="HWC", quality="exact")
    expected = np.array(ImageOps.exif_transpose(Image.open(buffer)).convert("RGB"))
    assert ours.shape == expected.shape
    assert np.array_equal(ours.numpy(), expected)


def test_random_resized_crop_has_torchvisions_distribution(tmp_path: Path) -> None:
    """Area and place of the crops follow ``RandomResizedCrop.get_params``.

    The picture holds its own coordinates (red is x, green is y), so a crop says where it was: the
    range of red and green over the output, a little inside its border, gives the crop's box.
    """
    size, width, height, draws = 64, 250, 190, 1500
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    pixels = np.stack([x, y, np.zeros_like(x)], axis=2).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    path = tmp_path / "coordinates.parquet"
    table = pa.table({"image": [buffer.getvalue()] * draws, "id": list(range(draws))})
    pq.write_table(table, path, row_group_size=500)
    ours = _ours(
        str(path),
        [fb.RandomResizedCrop(size)],
        batch_size=100,
        dtype="uint8",
        layout="CHW",
        quality="exact",
    )
    assert len(ours) == draws

    def box(image: torch.Tensor) -> tuple[float, float, float, float]:
        """Width, height and centre, from a quarter to three quarters of the output."""
        low, high = size // 4, size - 1 - size // 4
        span = (high - low) / size
        red, green = image[0, size // 2].float(), image[1, :, size // 2].float()
        return (
            ((red[high] - red[low]) / span).item(),
            ((green[high] - green[low]) / span).item(),
            ((red[high] + red[low]) / 2).item(),
            ((green[high] + green[low]) / 2).item(),
        )

    measured = np.array([box(image) for image in ours])

    torch.manual_seed(0)
    transform = v2.RandomResizedCrop(size)
    blank = torch.empty(3, height, width, dtype=torch.uint8)
    wanted = []
    for _ in range(4 * draws):
        p = transform.make_params([blank])
        center = (p["left"] + (p["width"] - 1) / 2, p["top"] + (p["height"] - 1) / 2)
        wanted.append((p["width"], p["height"], *center))
    wanted = np.array(wanted)

    # Kolmogorov-Smirnov: at a level of 1 in 10,000 the distance of two such samples stays below
    # 2.23 * sqrt(1/m + 1/n), 0.065 here; reading coordinates off pixels blurs them by one or two,
    # which moves the distribution by less than 0.02. The draws of a seed do not change, so this
    # test does not flicker.
    limit = 2.23 * np.sqrt(1 / len(measured) + 1 / len(wanted)) + 0.02

    def distance(a: np.ndarray, b: np.ndarray) -> float:
        at = np.sort(np.concatenate([a, b]))
        share_a = np.searchsorted(np.sort(a), at, side="right") / len(a)
        share_b = np.searchsorted(np.sort(b), at, side="right") / len(b)
        return float(np.abs(share_a - share_b).max())

    def share(rows: np.ndarray) -> np.ndarray:
        return rows[:, 0] * rows[:, 1] / (width * height)

    def ratio(rows: np.ndarray) -> np.ndarray:
        return np.log(rows[:, 0] / rows[:, 1])

    assert distance(share(measured), share(wanted)) < limit
    assert distance(ratio(measured), ratio(wanted)) < limit
    assert distance(measured[:, 2], wanted[:, 2]) < limit
    assert distance(measured[:, 3], wanted[:, 3]) < limit
    # Not one crop over and over, either.
    assert len({tuple(row) for row in measured.round(1).tolist()}) > 0.95 * draws


def test_same_rows_other_draws_in_the_next_epoch(photo_file: str) -> None:
    """T16: different draws for different samples and epochs, the same draws on a rerun."""
    dataset = fb.read_parquet(photo_file).map_image(
        "image", [fb.RandomResizedCrop(32), fb.RandomHorizontalFlip()], mode="RGB", dtype="uint8"
    )

    def epoch(number: int) -> torch.Tensor:
        loader = dataset.loader(
            batch_size=8, shuffle="none", seed=3, epoch_end="partial", format="torch"
        )
        loader.set_epoch(number)
        return torch.cat([batch["image"].clone() for batch in loader])

    first, again, second = epoch(0), epoch(0), epoch(1)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
