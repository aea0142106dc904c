"""Make an MDS data set of a Parquet one: `mds.py photographs|flights SOURCE TARGET WORKERS`.

Run with the interpreter that has MosaicML Streaming. The same rows in the same order, with the library's own
writer and its defaults (shards of 64 MiB, no compression): photographs as `bytes` and `int`, flights as one
float32 array of seven a row. Each Parquet file becomes a partition, and the library merges their indexes.
"""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import streaming
import streaming.base.util

from batches import dense
from data import COLUMNS, Source


def main() -> None:
    """Write the partitions in parallel, and their common index."""
    what, source, target, workers = sys.argv[1:]
    files = Source(source, 0).files()
    work = [(what, name, str(Path(target, f"{at:05}"))) for at, name in enumerate(files)]
    with multiprocessing.Pool(int(workers)) as pool:
        pool.starmap(partition, work, chunksize=1)
    streaming.base.util.merge_index(target)


def partition(what: str, name: str, target: str) -> None:
    """Write one Parquet file as MDS."""
    file = pq.ParquetFile(name)
    if what == "photographs":
        with streaming.MDSWriter(columns={"image": "bytes", "label": "int"}, out=target) as writer:
            for batch in file.iter_batches(100, columns=["image", "label"]):
                for row in batch.to_pylist():
                    writer.write(row)
        return
    with streaming.MDSWriter(columns={"x": f"ndarray:float32:{len(COLUMNS)}"}, out=target) as writer:
        for batch in file.iter_batches(65_536, columns=COLUMNS):
            for row in dense(pa.Table.from_batches([batch])):
                writer.write({"x": row})


if __name__ == "__main__":
    main()
