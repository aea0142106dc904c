"""A column of numbers, for batches of any size that cost little to make."""

from __future__ import annotations

from pathlib import Path

import data

ROW_BYTES = 4
# 4 MiB, so that a batch of 1 MiB does not wait for many rows that it has no use for.
ROW_GROUP = 1 << 20
RECIPE = "1"


def plain(cache: Path, mib: int) -> data.Source:
    """One column of float32, so many that they are this number of MiB.

    The numbers repeat, so that the file is small and zstd is quick: it is the hand-off that is measured.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = (mib << 20) // ROW_BYTES
    target = cache / f"plain-{mib}mib-{RECIPE}.parquet"
    if not target.exists():
        group = pa.table({"x": np.arange(ROW_GROUP, dtype=np.float32) % 251})
        options = {"compression": "zstd", "use_dictionary": False}
        with data.Staged(target) as staged, pq.ParquetWriter(staged, group.schema, **options) as writer:
            for _ in range(rows // ROW_GROUP):
                writer.write_table(group, row_group_size=ROW_GROUP)
    return data.Source(str(target), rows)
