"""One measured trainer in one fresh process: `trainer.py SPEC RESULT`, as `peers/measure.py`, with more kinds.

Throughput of an epoch is the peers' own measurement: a trainer there, here and beside a sidecar is the same code.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import case
import measure
import processes
from daemon import Held, until
from data import Source

# Batches before the clock: threads run, memory is there, whatever is compiled or cached is so.
WARM_STEPS = 10
# Between the elements of a batch that a trainer looks at: one float32 of each page of memory.
PAGE = 4096 // 4


def handoff(peer: Any, spec: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each `next()` that finds its batch ready, and of a view of memory that is at hand, for comparison."""
    import numpy as np

    import forebay as fb

    options = {"shuffle": "none", "format": "numpy", "epoch_end": "drop", "prefetch": 2}
    options |= {"batch_size": spec["batch"], "num_threads": spec["threads"]} | spec["options"]
    loader = peer.load(fb.read_parquet(spec["source"]["path"]), **options)
    seconds: list[float] = []
    views: list[float] = []
    memory = bytearray(PAGE)
    start, taken = time.perf_counter(), 0

    def ready() -> bool:
        """Whether the next batch is made, or sent where it is; while another is in the making, that may be the one."""
        stats = loader.stats()
        sent = stats["batches"] > taken if "socket" in spec["options"] else stats["batches_ready"] > 0
        return sent and stats["batches_making"] == 0

    while len(seconds) < spec["samples"]:
        batches = iter(loader)
        # The first of an epoch has nobody who could have made it ready.
        batch = next(batches)
        taken += 1
        for _ in range(1, min(len(loader), spec["samples"] - len(seconds) + 1)):
            # A trainer reads what it is given; only then are the batch's pages its own as well.
            batch["x"][::PAGE].sum()
            if not until(ready, pause=0):
                raise RuntimeError(f"no batch is ready: {loader.stats()}")
            time.sleep(spec["idle"])
            before = time.perf_counter()
            batch = next(batches)
            seconds.append(time.perf_counter() - before)
            taken += 1
            time.sleep(spec["idle"])
            before = time.perf_counter()
            view = {"x": np.frombuffer(memory, dtype=np.float32)}
            views.append(time.perf_counter() - before)
            del view
        del batch, batches
    rows = spec["batch"] * len(seconds)
    counted = {"wall": time.perf_counter() - start, "cpu": time.process_time(), "rows": rows}
    return counted | {"seconds": seconds, "views": views}


def calibrate(peer: Any, spec: dict[str, Any]) -> dict[str, Any]:
    """Turns of `spin` that take 20 ms where nothing disturbs: by the fastest of many tries."""
    turns = 200_000
    fastest = float("inf")
    for _ in range(60):
        before = time.perf_counter()
        spin(turns)
        fastest = min(fastest, time.perf_counter() - before)
    return {"turns": round(turns * spec["seconds"] / fastest), "wall": fastest, "cpu": fastest, "rows": turns}


def spin(turns: int) -> None:
    """Pure Python: it gives the interpreter's lock to whoever asks, and to nobody else."""
    for _ in range(turns):
        pass


def steps(peer: Any, spec: dict[str, Any]) -> dict[str, Any]:
    """Seconds for steps of pure Python beside a loader, and the cores that the loader takes meanwhile."""
    if hasattr(peer, "prepare"):
        peer.prepare(spec["threads"])
    loader = peer.images(
        Source.from_json(spec["source"]), spec["threads"], spec["seed"], **_variant(spec), **spec["options"]
    )
    return _steps(peer, _endless(loader), spec)


def steps_busy(peer: Any, spec: dict[str, Any]) -> dict[str, Any]:
    """The same steps beside programs in C that take as many cores."""
    whole, rest = divmod(spec["cores"], 1)
    busy = [
        subprocess.Popen([spec["busy"], f"{share:.4f}", f"{1000 * spec['period']:.3f}"])
        for share in [1.0] * int(whole) + [rest]
    ]
    try:
        return _steps(peer, iter(int, 1), spec)
    finally:
        for process in busy:
            process.kill()
            process.wait()


def _steps(peer: Any, batches: Iterator[Any], spec: dict[str, Any]) -> dict[str, Any]:
    turns, waits = spec["turns"], []
    for _ in range(WARM_STEPS):
        next(batches)
        spin(turns)
    sidecar = spec.get("sidecar")
    served = processes.tree_cpu_seconds(sidecar) if sidecar else 0.0
    with measure.meter(peer) as cpu:
        start, own = time.perf_counter(), time.thread_time()
        for _ in range(spec["steps"]):
            before = time.perf_counter()
            next(batches)
            waits.append(time.perf_counter() - before)
            spin(turns)
        wall, own = time.perf_counter() - start, time.thread_time() - own
    others = cpu.seconds - own + (processes.tree_cpu_seconds(sidecar) - served if sidecar else 0.0)
    waited = sorted(waits)[len(waits) // 2]
    counted = {"wall": wall, "cpu": cpu.seconds, "rows": len(waits), "stolen": cpu.stolen}
    return counted | {"cores": max(others, 0.0) / wall, "waited": waited}


def _endless(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def ranks(peer: Any, spec: dict[str, Any]) -> dict[str, Any]:
    """Bytes that all ranks together read from storage in one epoch, in step."""
    import forebay as fb

    world = spec["world"]
    dataset = fb.read_parquet(spec["source"]["path"], columns=spec["columns"])
    options = {"global_batch_size": spec["batch"], "shuffle": "window", "lanes": 1, "fill": 0, "seed": spec["seed"]}
    options |= {"num_threads": spec["threads"]} | spec["options"]
    loaders = [peer.load(dataset, rank=rank, world_size=world, **options) for rank in range(world)]
    start = time.perf_counter()
    for _ in zip(*loaders, strict=True):
        pass
    wall, stats = time.perf_counter() - start, [loader.stats() for loader in loaders]
    read, rows = (sum(s[name] for s in stats) for name in ("bytes_read", "rows"))
    return {"bytes_read": read, "window": stats[0]["window"], "rows": rows, "wall": wall, "cpu": time.process_time()}


def cycles(peer: Any, spec: dict[str, Any]) -> dict[str, Any]:
    """What this process and the sidecar hold before and after loaders were opened, used and closed."""
    import forebay as fb

    dataset = fb.read_parquet(spec["source"]["path"], columns=spec["columns"])
    socket, sidecar = spec["options"]["socket"], spec["sidecar"]

    def cycle(count: int) -> None:
        for _ in range(count):
            loader = peer.load(dataset, socket, batch_size=256, shuffle="none", fill=0, num_threads=spec["threads"])
            next(iter(loader))
            del loader
        gc.collect()
        watcher = fb.connect(socket)
        until(lambda: not watcher.status()["loaders"])

    def settled() -> dict[str, Any]:
        """Wait for threads that still end; what is held then."""
        least: dict[str, Held] = {}
        for _ in range(20):
            time.sleep(0.05)
            now = {"trainer": Held.of(), "sidecar": Held.of(sidecar)}
            least = {who: min(least.get(who, held), held, key=lambda h: (h.threads, h.descriptors, h.rss))
                     for who, held in now.items()}  # fmt: skip
        return {who: held.to_json() for who, held in least.items()}

    cycle(spec["warm_cycles"])
    before, start = settled(), time.perf_counter()
    cycle(spec["cycles"])
    wall = time.perf_counter() - start
    counted = {"wall": wall, "cpu": time.process_time(), "rows": spec["cycles"]}
    return counted | {"before": before, "after": settled()}


def _variant(spec: dict[str, Any]) -> dict[str, str]:
    return {"variant": spec["variant"]} if spec.get("variant") else {}


def main() -> None:
    """Measure as the peers are measured."""
    kinds = [handoff, calibrate, steps, steps_busy, ranks, cycles]
    measure.KINDS |= {kind.__name__: kind for kind in kinds}
    spec = json.loads(sys.argv[1])
    if "image_batch" in spec:
        # Before a peer is imported: all of them take it from there.
        case.IMAGE_BATCH = spec["image_batch"]
    measure.main()


if __name__ == "__main__":
    main()
