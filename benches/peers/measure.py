"""One measurement in one fresh process: `measure.py SPEC RESULT`, both JSON, the second a file to write.

Nothing of a peer outlives its measurement, and nothing of one peer is imported while another is measured.
The result says how long an epoch (or the first batch) took on the wall and in CPU seconds, children
included, or why there is none. What a peer delivers is checked in the warm-up pass, outside the clock.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import math
import os
import pickle
import sys
import time
import traceback
from typing import Any

import processes
from case import IMAGE_SIZE, TABULAR_BATCH
from data import COLUMNS, Source

# More than any peer takes for its buffers in the timed part, less than a small machine has.
BACKED_BYTES = 2 << 30
# Seconds without work before the clock. The warm-up and the touching of memory are a burst, after which a host
# may take processor time back for a while. Linux tells the host of free pages after two seconds: not as long.
PAUSE = 1.0


class Wrong(Exception):
    """A peer delivered something other than what was asked: its speed means nothing."""


def main() -> None:
    """Measure, and always write a result."""
    spec = json.loads(sys.argv[1])
    processes.adopt_orphans()
    processes.pin(spec["cpus"])
    peer: Any = None
    result: dict[str, Any]
    try:
        try:
            peer = importlib.import_module(spec["module"])
        except ImportError as error:
            result = {"error": f"cannot be imported: {error}", "final": True}
        else:
            result = KINDS[spec["kind"]](peer, spec)
    except Exception as error:
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:400]}
    # Written before the peer is closed: Ray ends the process where a prefetching thread outlives its cluster.
    with open(sys.argv[2], "w") as file:
        json.dump(result, file)
    if hasattr(peer, "close"):
        peer.close()


def throughput(peer: Any, spec: dict[str, Any]) -> dict[str, Any]:
    """A checked warm-up pass over the small set, then one timed epoch over the full one."""
    threads = spec["threads"]
    if hasattr(peer, "prepare"):
        peer.prepare(threads)
    warm, full = Source.from_json(spec["warm"]), Source.from_json(spec["source"])
    _check_epoch(_open(peer, spec, warm), warm, spec)
    loader = _open(peer, spec, full)
    _back_memory()
    with meter(peer) as cpu:
        start, own = time.perf_counter(), time.process_time()
        rows = batches = 0
        for batch in loader:
            rows += len(batch)
            batches += 1
        wall, own = time.perf_counter() - start, time.process_time() - own
    _check_rows(rows, full, spec)
    counted = {"rows": rows, "batches": batches, "own_cpu": own}
    return {"wall": wall, "cpu": cpu.seconds, "stolen": cpu.stolen} | counted


def first_batch(peer: Any, spec: dict[str, Any]) -> dict[str, Any]:
    """From imports done to the first batch; `prepare` is timed on its own."""
    import torch

    # Part of the imports: torch sets up its thread pool and its kernels at the first operation.
    torch.ones(64, 64).mul(2.0).sum().item()
    start = time.perf_counter()
    if hasattr(peer, "prepare"):
        peer.prepare(spec["threads"])
    prepared = time.perf_counter() - start
    source = Source.from_json(spec["source"])
    _back_memory()
    with meter(peer) as cpu:
        start = time.perf_counter()
        batches = iter(peer.startup(source, spec["threads"], spec["seed"], **_variant(spec)))
        batch = next(batches)
        wall = time.perf_counter() - start
    _check_images(batch)
    return {"wall": wall, "cpu": cpu.seconds, "stolen": cpu.stolen, "rows": len(batch), "prepare": prepared}


def position(peer: Any, spec: dict[str, Any]) -> dict[str, Any]:
    """Run to 90% of an epoch, keep the state in a file, and say which batches come first and next."""
    source = Source.from_json(spec["source"])
    start = time.perf_counter()
    loader = _resumable(peer, spec, source)
    batches = iter(loader)
    item = next(batches)
    rows = len(item[0])
    fresh = _digest(item, spec)
    for _ in range(1, spec["steps"]):
        item = next(batches)
        rows += len(item[0])
    wall = time.perf_counter() - start
    state = pickle.dumps(loader.state_dict())
    with open(spec["state"], "wb") as file:
        file.write(state)
    following = _digest(next(batches), spec)
    if following == fresh:
        raise Wrong("the batch at 90% is the one at 0%: the check would say nothing")
    version = getattr(peer, "VERSION", None)
    known = {"fresh": fresh, "next": following, "bytes": len(state), "version": version}
    return known | {"wall": wall, "cpu": 0.0, "rows": rows}


def resume(peer: Any, spec: dict[str, Any]) -> dict[str, Any]:
    """From imports done and state at hand to the first batch: loader made, state loaded, iterated."""
    import torch

    torch.ones(64, 64).mul(2.0).sum().item()
    if hasattr(peer, "prepare"):
        peer.prepare(spec["threads"])
    source, state = Source.from_json(spec["source"]), None
    if spec["at"]:
        with open(spec["state"], "rb") as file:
            state = pickle.load(file)
    _back_memory()
    with meter(peer) as cpu:
        start = time.perf_counter()
        loader = _resumable(peer, spec, source)
        if state is not None:
            loader.load_state_dict(state)
        batches = iter(loader)
        item = next(batches)
        wall = time.perf_counter() - start
    if spec["what"] == "photographs":
        _check_images(item[0])
    got, known = _digest(item, spec), spec["known"]
    if state is not None and got == known["fresh"]:
        raise Wrong("the state was loaded, and the first batch is that of a fresh start")
    exact = got == known["next" if state is not None else "fresh"]
    if spec["module"] == "peer_forebay" and not exact:
        raise Wrong("the first batch is not the one that an uninterrupted run delivers there")
    return {"wall": wall, "cpu": cpu.seconds, "stolen": cpu.stolen, "rows": len(item[0]), "exact": exact}


def _digest(item: Any, spec: dict[str, Any]) -> str:
    """Which rows a batch is of: by its labels or numbers, and for Forebay by its pixels too.

    The peers' crops and flips come from generators that no state holds.
    """
    import numpy as np

    parts = item if spec["module"] == "peer_forebay" else item[-1:]
    return hashlib.sha256(b"".join(np.ascontiguousarray(p).tobytes() for p in parts)).hexdigest()


def _resumable(peer: Any, spec: dict[str, Any], source: Source) -> Any:
    return peer.resume(source, spec["threads"], spec["seed"], spec["what"], **_variant(spec))


def memory(peer: Any, spec: dict[str, Any]) -> dict[str, Any]:
    """Peak resident memory of an epoch above what the imports left, in bytes."""
    gc.collect()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak starts again from here: an import may have had a higher one
    before = _status("VmRSS")
    rows = sum(len(batch) for batch in _open(peer, spec, Source.from_json(spec["source"])))
    peak = _status("VmHWM")
    _check_rows(rows, Source.from_json(spec["source"]), spec)
    return {"before": before, "peak": peak, "above": peak - before, "rows": rows}


KINDS = {
    "throughput": throughput,
    "first_batch": first_batch,
    "memory": memory,
    "position": position,
    "resume": resume,
}


def _back_memory() -> None:
    """Touch memory, free it again and pause, right before the clock.

    A virtual machine's host takes free memory back after seconds and returns it at a tenth of the speed of
    memory (4 s for a gibibyte where this was written, 0.4 s without). Whoever comes after a pause would pay
    for that, so everyone starts with pages that the host has already given.
    """
    import numpy as np

    gc.collect()
    np.ones(BACKED_BYTES, np.uint8)
    time.sleep(PAUSE)


def meter(peer: Any) -> processes.CpuMeter:
    return processes.CpuMeter(os.getpid(), watch=getattr(peer, "LOSES_CHILDREN", False))


def _open(peer: Any, spec: dict[str, Any], source: Source) -> Any:
    options = _variant(spec) | spec.get("options", {})
    if spec["bench"] == "images":
        return peer.images(source, spec["threads"], spec["seed"], **options)
    return peer.tabular(source, spec["threads"], spec["seed"], spec["order"], **options)


def _variant(spec: dict[str, Any]) -> dict[str, str]:
    return {"variant": spec["variant"]} if spec["variant"] else {}


def _check_epoch(loader: Any, source: Source, spec: dict[str, Any]) -> None:
    """Every row once, of the right type and shape; for numbers, the right sums."""
    import numpy as np

    rows, sums, known, sizes = 0, np.zeros(len(COLUMNS)), np.zeros(len(COLUMNS), np.int64), []
    for batch in loader:
        rows += len(batch)
        if spec["module"] == "limit":
            continue
        if spec["bench"] == "images":
            _check_images(batch, spec["variant"] == "uint8")
        elif spec["variant"] != "scan":
            if tuple(batch.shape[1:]) != (len(COLUMNS),) or "float32" not in str(batch.dtype):
                raise Wrong(f"a batch of {batch.dtype} {tuple(batch.shape)}, not float32 [n, {len(COLUMNS)}]")
            matrix = np.asarray(batch, np.float64)
            sums += np.nansum(matrix, axis=0)
            known += (~np.isnan(matrix)).sum(axis=0)
            sizes.append(len(batch))
    _check_rows(rows, source, spec)
    if sizes:
        odd = [s for s in sizes if s != TABULAR_BATCH]
        if len(odd) > spec["threads"]:
            raise Wrong(f"{len(odd)} of {len(sizes)} batches are not of {TABULAR_BATCH} rows: {odd[:5]}")
        _check_sums(sums, known, source)


def _check_sums(sums: Any, known: Any, source: Source) -> None:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    for index, name in enumerate(COLUMNS):
        columns = [pq.read_table(f, columns=[name])[name] for f in source.files()]
        total = math.fsum(pc.sum(c).as_py() or 0 for c in columns)
        count = sum(len(c) - c.null_count for c in columns)
        if count != known[index] or total != sums[index]:
            raise Wrong(f"column {name}: {known[index]} values that sum to {sums[index]}, not {count} and {total}")


def _check_images(batch: Any, pixels: bool = False) -> None:
    import torch

    dtype = torch.uint8 if pixels else torch.float32
    if not isinstance(batch, torch.Tensor) or batch.dtype != dtype:
        raise Wrong(f"a batch of {getattr(batch, 'dtype', type(batch))}, not a torch tensor of {dtype}")
    if tuple(batch.shape[1:]) != (3, IMAGE_SIZE, IMAGE_SIZE) or not batch.is_contiguous():
        raise Wrong(f"a batch of shape {tuple(batch.shape)}, not contiguous [n, 3, {IMAGE_SIZE}, {IMAGE_SIZE}]")
    if pixels:
        batch = (batch / 255 - 0.45) / 0.225
    low, high, spread = batch.min().item(), batch.max().item(), batch.std().item()
    # Normalised photographs: black is -2.12 and white 2.64; a constant batch was never decoded.
    if not (-2.3 < low < -1.0 and 1.0 < high < 2.8 and spread > 0.5):
        raise Wrong(f"values from {low:.2f} to {high:.2f} (deviation {spread:.2f}) are no normalised photographs")


def _check_rows(rows: int, source: Source, spec: dict[str, Any]) -> None:
    tail = source.rows % spec["may_drop_tail"] if spec.get("may_drop_tail") else 0
    if rows not in (source.rows, source.rows - tail):
        raise Wrong(f"delivered {rows} rows of {source.rows}")


def _status(field: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field + ":"))


if __name__ == "__main__":
    main()
