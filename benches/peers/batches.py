"""Dense matrices out of Arrow batches, and fixed-size batches out of uneven ones.

Written once for the peers that hand out Arrow, and kept as fast as NumPy allows: a slow conversion here
would make the peers look bad for a fault of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def dense(batch: pa.RecordBatch | pa.Table) -> np.ndarray:
    """Return the columns as a C-contiguous float32 matrix [rows, columns]; nulls become NaN."""
    out = np.empty((batch.num_rows, batch.num_columns), np.float32)
    for index, column in enumerate(batch.columns):
        out[:, index] = column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy()
    return out


def fixed(matrices: Iterable[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Cut a stream of matrices into matrices of exactly `size` rows, the last one smaller."""
    carry: list[np.ndarray] = []
    held = 0
    for matrix in matrices:
        at = 0
        if held:
            at = min(size - held, len(matrix))
            carry.append(matrix[:at])
            held += at
            if held < size:
                continue
            yield np.concatenate(carry)
            carry, held = [], 0
        whole = at + (len(matrix) - at) // size * size
        for start in range(at, whole, size):
            yield matrix[start : start + size]
        if whole < len(matrix):
            carry, held = [matrix[whole:]], len(matrix) - whole
    if held:
        yield np.concatenate(carry)


def permuted_images(path: str, seed: int, shard: int = 0, shards: int = 1) -> Iterator[tuple[bytes, int]]:
    """Yield (JPEG bytes, label) row group by row group in a permuted order, rows permuted within each."""
    file = pq.ParquetFile(path, memory_map=True)
    order = np.random.default_rng(seed)
    for group in order.permutation(file.num_row_groups)[shard::shards]:
        table = file.read_row_group(int(group), columns=["image", "label"])
        images, labels = table["image"].chunk(0), table["label"].to_numpy()
        for row in order.permutation(table.num_rows):
            yield images[row].as_buffer(), int(labels[row])
