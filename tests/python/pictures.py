"""Pictures for the tests of image operators, and how they are run through a loader."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")
InterpolationMode = pytest.importorskip("torchvision.transforms").InterpolationMode

import forebay as fb  # noqa: E402

PHOTOS = Path(__file__).resolve().parents[2] / "examples" / "data" / "photos"
READINGS = {"nearest": InterpolationMode.NEAREST, "bilinear": InterpolationMode.BILINEAR}


def scenes() -> list[np.ndarray]:
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


SCENES = scenes()
GRAYS = [scene[..., 1].copy() for scene in SCENES]
OPAQUE = [
    np.concatenate([scene, np.ascontiguousarray(scene[::-1, :, :1])], axis=2) for scene in SCENES
]


def tensor(pixels: np.ndarray) -> torch.Tensor:
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1).contiguous()


def parquet(folder: Path, pictures: list[np.ndarray]) -> str:
    def png(pixels: np.ndarray) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
        return buffer.getvalue()

    path = folder / "pictures.parquet"
    pq.write_table(pa.table({"image": [png(p) for p in pictures]}), path, row_group_size=50)
    return str(path)


def run(path: str, ops: list, *, seed: int = 0, num_threads: int = 2, **options) -> list:
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


def agree(ours: torch.Tensor, expected: torch.Tensor, limit: int = 0, share: float = 0.0) -> None:
    assert ours.shape == expected.shape
    assert ours.dtype == expected.dtype
    difference = (ours.int() - expected.int()).abs()
    assert difference.max().item() <= limit
    assert (difference > 0).float().mean().item() <= share
