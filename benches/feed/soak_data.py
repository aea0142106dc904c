"""What the clients of a soak load: rows that say what they hold, so that each batch is checked in full."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import data

ROWS = 400_000
ROW_GROUP = 10_000
COLUMNS = [f"x{at}" for at in range(6)]
PICTURES = 1_000
PICTURE_GROUP = 25
SIDE = 64


def make(folder: Path) -> None:
    """Write `rows` and `pictures`, and what the pictures look like."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    ids = np.arange(ROWS)
    matrix = values(ids)
    table = pa.table({"id": ids} | {name: matrix[:, at] for at, name in enumerate(COLUMNS)})
    pq.write_table(table, folder / "rows.parquet", row_group_size=ROW_GROUP, compression="zstd")
    files = sorted((data.shared_data() / "photos").glob("*.JPEG"))
    images = [file.read_bytes() for file in files]
    table = pa.table({"id": range(PICTURES), "image": [images[at % len(images)] for at in range(PICTURES)]})
    pq.write_table(table, folder / "pictures.parquet", row_group_size=PICTURE_GROUP)
    loader = pictures(folder).loader(50, shuffle="none", format="numpy")
    np.save(folder / "pictures.npy", np.concatenate([batch["image"] for batch in loader])[: len(images)])


def values(ids: np.ndarray) -> np.ndarray:
    """What stands in the rows of these ids: float32 [n, 6]."""
    return (ids[:, None] * np.arange(3, 3 + len(COLUMNS)) % 10_007).astype(np.float32)


def rows(folder: Path):
    """Ids, and their values as one matrix `x`."""
    import forebay as fb

    return fb.read_parquet(folder / "rows.parquet").stack(COLUMNS, into="x", dtype="float32")


def pictures(folder: Path):
    """Ids, and photographs that depend on nothing else."""
    import forebay as fb

    operators = [fb.Resize(SIDE), fb.CenterCrop(SIDE)]
    dataset = fb.read_parquet(folder / "pictures.parquet")
    return dataset.map_image("image", operators, mode="RGB", dtype="uint8", layout="CHW")
