"""How well windows and lanes mix, on the worst case, and what that costs.

Prints the tables of `docs/shuffle.md`. The first is of 200,000 rows of 10 classes, sorted by class, in
10 files with 200 blocks of 1,000 rows; nothing of the machine enters its figures. The second is of a
million rows of 20 floats in 200 blocks. It takes a minute and 100 MB in the temporary folder:

    .venv/bin/python benches/mixing.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import forebay as fb

ROWS, CLASSES, FILES, BLOCK = 200_000, 10, 10, 1_000
BATCH = 256
EPOCHS = 5
WINDOWS = {1: [1, 2, 5, 10, 20, 50, 100, 200], 8: [1, 2, 5, 10, 25], 64: [1, 2, 3]}


MEMORY = [(1, 1), (1, 10), (1, 50), (1, 200), (8, 1), (8, 5), (8, 12), (64, 1), (64, 2)]


def write(folder: Path) -> None:
    """One file after the other: ids, and classes in ascending order."""
    for part in range(FILES):
        ids = np.arange(part * ROWS // FILES, (part + 1) * ROWS // FILES)
        table = pa.table({"id": ids, "label": (ids * CLASSES // ROWS).astype(np.int32)})
        pq.write_table(table, folder / f"{part}.parquet", row_group_size=BLOCK)


def line(lanes: str, window: str, blocks: str, found: list[fb.Mixing]) -> str:
    """One line of the table: means over the epochs, for the correlation that of its size."""
    correlation = np.mean([abs(m.rank_correlation) for m in found])
    beside = np.mean([m.same_class[0] for m in found])
    near = np.mean([m.same_class.mean() for m in found])
    batch = np.mean([m.batch_class for m in found])
    return f"| {lanes} | {window} | {blocks} | {correlation:.3f} | {beside:.2f} | {near:.2f} | {batch:.2f} |"


def memory() -> None:
    """Print what windows and lanes take in one process that has all lanes."""
    rows, columns = 1_000_000, [f"x{c}" for c in range(20)]
    data = rows * len(columns) * 4
    print(f"\n{rows:,} rows of {len(columns)} floats: {data / 1e6:.0f} MB in 200 blocks\n")
    print("| lanes | window | blocks mixed | their MB | peak MB | bytes read, of the data |")
    print("|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        draws = np.random.default_rng(0)
        for part in range(FILES):
            table = pa.table({c: draws.random(rows // FILES, dtype=np.float32) for c in columns})
            path = Path(folder) / f"{part}.parquet"
            pq.write_table(table, path, row_group_size=rows // 200, use_dictionary=False)
        dataset = fb.read_parquet(folder).stack(columns, into="x")
        for lanes, window in MEMORY:
            how = {"lanes": lanes, "window": window, "prefetch": 2, "num_threads": 2}
            loader = dataset.loader(BATCH, rank=0, world_size=1, format="numpy", **how)
            for _ in loader:
                pass
            stats = loader.stats()
            mixed, peak = lanes * window * data / 200 / 1e6, stats["memory_peak"] / 1e6
            read = stats["bytes_read"] / data
            print(f"| {lanes} | {window} | {lanes * window} | {mixed:.1f} | {peak:.1f} | {read:.2f} |")


def main() -> None:
    """Print the tables."""
    print(f"{ROWS:,} rows, {CLASSES} classes, blocks of {BLOCK:,} rows, batches of {BATCH}, {EPOCHS} epochs\n")
    print("| lanes | window | blocks mixed | rank correlation | next row | next 16 rows | same batch |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        dataset = fb.read_parquet(folder)

        def measure(**options: int | str) -> list[fb.Mixing]:
            how = {"classes": "label", "batch_size": BATCH, "seed": 7, **options}
            return [fb.mixing_of(dataset, "id", epoch=epoch, **how) for epoch in range(EPOCHS)]

        none = measure(shuffle="none")[:1]
        print(line("`none`", "", "0", none))
        for lanes, windows in WINDOWS.items():
            for window in windows:
                print(line(str(lanes), str(window), str(lanes * window), measure(lanes=lanes, window=window)))
        labels = np.arange(ROWS) * CLASSES // ROWS
        orders = [np.random.default_rng(seed).permutation(ROWS) for seed in range(EPOCHS)]
        full = [fb.mixing(o, classes=labels, batch_size=BATCH) for o in orders]
        print(line("permutation", "", "200", full))
    memory()


if __name__ == "__main__":
    main()
