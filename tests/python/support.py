"""What several test files share: where things are, small data sets, child processes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import forebay as fb

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("FOREBAY_TEST_DATA") or ROOT.parent / "shared" / "data")
# Beside the data: schemas of KubeRay's resources, and the program that checks manifests with them.
KUBERAY = DATA.parent / "kuberay"
BINARY = Path(os.environ.get("FOREBAY_BIN") or ROOT / "target" / "fast" / "forebay")

# Against hangs only: nothing here takes anywhere near that long, and no test measures time.
DEADLINE = 60.0


def write(path: Path, columns: dict[str, Any] | pa.Table, **options: Any) -> str:
    """Write one Parquet file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, path, **options)
    return str(path)


def numbered(path: Path, rows: int, row_group: int = 100) -> str:
    """Write a file of row ids and a value that follows from the id."""
    ids = np.arange(rows)
    return write(path, {"id": ids, "half": ids * 0.5}, row_group_size=row_group)


def in_order(dataset: fb.Dataset, batch_size: int = 64, **options: Any) -> list[dict[str, Any]]:
    """Every batch of one epoch in file order, as NumPy."""
    options.setdefault("format", "numpy")
    return list(dataset.loader(batch_size, shuffle="none", **options))


def ids(loader: fb.Loader, column: str = "id") -> list[int]:
    """The row ids of one epoch in the order in which they come."""
    return [int(i) for batch in loader for i in batch[column]]


def digest(batches: Iterator[dict[str, Any]]) -> str:
    """One hash for all columns of all batches: dtype, shape and bytes."""
    sha = hashlib.sha256()
    for batch in batches:
        for name, value in batch.items():
            array = np.ascontiguousarray(value)
            sha.update(f"{name} {array.dtype} {array.shape}".encode())
            sha.update(array.tobytes())
    return sha.hexdigest()


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that must come true; fail after a deadline."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"still not: {what}"
        time.sleep(0.01)


def engine_threads() -> list[str]:
    """Names of this process's threads that are Forebay's."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        try:
            names.append((task / "comm").read_text().strip())
        except OSError:  # it ended between the listing and the look
            continue
    return [name for name in names if name.startswith("forebay")]


def child(code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start a Python process with this code; standard output and error are piped."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], timeout: float = DEADLINE) -> tuple[int, str, str]:
    """Wait for a child; exit status (negative for a signal), output, errors."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            out, err = process.communicate(timeout=5)
        except subprocess.TimeoutExpired as more:
            # A child of it hangs as well, and holds the pipes open.
            out, err = more.output, more.stderr
        message = f"the process hangs; so far it printed:\n{out}\n{err}"
        raise AssertionError(message) from None
    return process.returncode, out, err


def forebay(*arguments: str | Path, cwd: Path = ROOT, **environment: str) -> tuple[int, str, str]:
    """Run the command line to its end."""
    return finish(start_forebay(*arguments, cwd=cwd, **environment))


def start_forebay(
    *arguments: str | Path, cwd: Path = ROOT, **environment: str
) -> subprocess.Popen[str]:
    """Start the command line."""
    return subprocess.Popen(
        [str(BINARY), *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def data_files(folder: Path) -> list[Path]:
    """Files that a reader who knows nothing of Forebay would take for data."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and not any(part.startswith(("_", ".")) for part in path.relative_to(folder).parts)
    )
