"""Parquet files in a folder or in a bucket, read by pyarrow: for peers that bring no store of their own.

The bucket's endpoint and keys are those of the usual AWS variables.
"""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from data import Source

SCHEME = "s3://"


class Storage:
    """The files of one source. Made in each worker anew: the S3 client does not survive a fork."""

    def __init__(self, source: Source) -> None:
        self.store = None
        if not source.path.startswith(SCHEME):
            self.files = source.files()
            return
        endpoint = os.environ["AWS_ENDPOINT_URL"]
        scheme, _, address = endpoint.partition("://")
        self.store = pyarrow.fs.S3FileSystem(
            endpoint_override=address, scheme=scheme, region=os.environ.get("AWS_REGION", "us-east-1")
        )
        path = source.path.removeprefix(SCHEME)
        found = self.store.get_file_info(pyarrow.fs.FileSelector(path, recursive=True))
        self.files = sorted(f.path for f in found if f.is_file)

    def table(self, name: str, columns: list[str]) -> pa.Table:
        """Read one file whole."""
        if self.store is None:
            return pq.read_table(name, columns=columns, memory_map=True)
        return pq.read_table(name, columns=columns, filesystem=self.store)

    def open(self, name: str) -> pq.ParquetFile:
        """Open a file for reading by row groups; from a bucket the columns come in few requests."""
        if self.store is None:
            return pq.ParquetFile(name, memory_map=True)
        return pq.ParquetFile(self.store.open_input_file(name), pre_buffer=True)
