"""The figures of `make bench-feed`: what is measured for each, and which value is the goal.

Each function is a word of `--only`. It measures its rounds and returns its figures.
"""

from __future__ import annotations

import math
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import data
from bench import HERE, Bench, Figure
from plain import ROW_BYTES, plain

MIB = 2**20
# Python between two batches, in seconds: a training step that does not wait for data.
STEP = 0.02
# Sleep of a trainer that is not ready to go on when its batch is, in seconds. The processor forgets meanwhile what it
# had at hand, so that any few lines of Python take many times as long: `numpy_view` is the measure of that.
IDLE = 0.01
# Photographs in the batch of such a step. The slowest of those that are compared takes two thirds of the step for
# them on one core: none is to be the one that is waited for.
STEP_IMAGES = 3
# Mappings that an allocator may have more of at one moment than at another.
SPARE_MAPPINGS = 16
# Resident bytes a cycle below which nothing is kept: a leaked message, name or thread is more.
SPARE_BYTES = 2048


def images(bench: Bench) -> list[Figure]:
    """Photographs to training batches, here and from a sidecar."""
    source, warm = bench.photographs(), data.photographs(bench.options.data, data.PHOTOS_WARM)
    rounds = _both(bench, "images", source, warm)
    shares = [there["own_cpu"] / there["wall"] for _, there in rounds]
    here = median(here["own_cpu"] / here["wall"] for here, _ in rounds)
    return [
        _throughput("images", "images/s", rounds),
        Figure("images_trainer_cpu", "the trainer's CPU beside a sidecar", "cores", shares, ("<", 0.05),
               {"in_process": here}),
    ]  # fmt: skip


def tabular(bench: Bench) -> list[Figure]:
    """Numbers to dense batches, here and from a sidecar."""
    source, warm = bench.flights(), data.flights(bench.options.data, 1, data.FLIGHTS_WARM)
    rounds = _both(bench, "tabular", source, warm)
    micros = [1e6 * there["own_cpu"] / there["batches"] for _, there in rounds]
    here = median(1e6 * here["own_cpu"] / here["batches"] for here, _ in rounds)
    return [
        _throughput("tabular", "rows/s", rounds),
        Figure("tabular_trainer_cpu", "the trainer's CPU beside a sidecar", "µs/batch", micros, ("<", 25),
               {"in_process": here}),
    ]  # fmt: skip


def _both(bench: Bench, name: str, source: data.Source, warm: data.Source) -> list[list[dict[str, Any]]]:
    spec = {"bench": name, "warm": warm.to_json()}

    def here() -> dict[str, Any]:
        return bench.measure(f"{name} in process", "throughput", source, **spec)

    def there() -> dict[str, Any]:
        with bench.sidecar() as sidecar:
            options = {"socket": str(sidecar.socket)}
            return bench.measure(f"{name} from a sidecar", "throughput", source, **spec, options=options)

    return bench.in_turn(name, [here, there])


def _throughput(name: str, unit: str, rounds: list[list[dict[str, Any]]]) -> Figure:
    here, there = ([r[side]["rows"] / r[side]["wall"] for r in rounds] for side in (0, 1))
    ratios = [b / a for a, b in zip(here, there, strict=True)]
    detail = {"in_process": median(here), "sidecar": median(there), "rate": unit}
    return Figure(f"{name}_throughput", "sidecar over in-process", "ratio", ratios, (">=", 0.95), detail)


def handoff(bench: Bench) -> list[Figure]:
    """Time of `next()` where the batch is ready: asked for at once, and by a trainer that slept."""
    figures = []
    for mib, samples, quick_samples in ((1, 1_000, 100), (256, 30, 4)):
        for idle in (0.0, IDLE):
            figures += _handoff(bench, mib, quick_samples if bench.quick else samples, idle)
    return figures


def _handoff(bench: Bench, mib: int, samples: int, idle: float) -> list[Figure]:
    # Two batches to come, one in the trainer's hands, and what they are made of.
    source = plain(bench.options.data, 1024 if bench.quick else 2048)
    limit = 256 * MIB + 6 * mib * MIB
    spec = {"batch": mib * MIB // ROW_BYTES, "samples": samples, "idle": idle}

    def here() -> dict[str, Any]:
        return bench.measure(f"{mib} MiB in process", "handoff", source, **spec, options={"memory_limit": limit})

    def there() -> dict[str, Any]:
        with bench.sidecar("--memory", str(limit + 256 * MIB)) as sidecar:
            options = {"memory_limit": limit, "socket": str(sidecar.socket)}
            return bench.measure(f"{mib} MiB from a sidecar", "handoff", source, **spec, options=options)

    name, what = f"handoff_{mib}mib", "next() of a ready batch"
    if idle:
        name, what = f"{name}_slept", f"{what} after {1000 * idle:g} ms of sleep"
    rounds = bench.in_turn(f"{what}, {mib} MiB", [here, there])
    figures = []
    for quantile, share, goal in (("median", 0.5, 50), ("p99", 0.99, 500)):
        own, micros = ([1e6 * _quantile(r[side]["seconds"], share) for r in rounds] for side in (0, 1))
        views = [1e6 * _quantile(r[1]["views"], share) for r in rounds]
        # Of a few samples a round, the 99th percentile is the largest; that of all rounds is one of many.
        together = 1e6 * _quantile([s for r in rounds for s in r[1]["seconds"]], share)
        detail = {"in_process": median(own), "numpy_view": median(views), "of_all_rounds": together, "samples": samples}
        figures.append(Figure(f"{name}_{quantile}", what, "µs", micros, None if idle else ("<", goal), detail))
    return figures


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(math.ceil(share * len(ordered)), len(ordered)) - 1]


def steps(bench: Bench) -> list[Figure]:
    """Pure Python between batches, beside Forebay's threads and beside a sidecar."""
    return [
        _loss(bench, "steps_in_process", "peer_forebay", goal=("<", 0.03)),
        _loss(bench, "steps_sidecar", "peer_forebay", goal=("<", 0.03), sidecar=True),
    ]


def steps_torch(bench: Bench) -> list[Figure]:
    """The same beside torch's DataLoader with one worker."""
    return [_loss(bench, "steps_torch", "peer_torch", variant="tensor")]


def steps_ray(bench: Bench) -> list[Figure]:
    """The same beside Ray Data with one CPU."""
    return [_loss(bench, "steps_ray", "peer_ray")]


def _loss(
    bench: Bench, name: str, module: str, goal: tuple[str, float] | None = None, sidecar: bool = False, **spec: Any
) -> Figure:
    """What a loader costs a trainer beyond the processor time that its work takes."""
    count = 40 if bench.quick else 400
    turns = bench.measure("calibration", "calibrate", seconds=STEP)["turns"]
    settings = {"turns": turns, "steps": count, "threads": 1, "image_batch": STEP_IMAGES}
    source = bench.photographs()

    def beside(**more: Any) -> dict[str, Any]:
        return bench.measure(name, "steps", source, module=module, **settings, **spec, **more)

    def loader() -> dict[str, Any]:
        if not sidecar:
            return beside()
        with bench.sidecar() as served:
            return beside(sidecar=served.pid, options={"socket": str(served.socket)})

    with tempfile.TemporaryDirectory() as folder:
        busy = Path(folder, "busy")
        subprocess.run(["cc", "-O2", "-o", busy, HERE / "busy.c"], check=True)
        losses, measured = [], []
        for _ in range(bench.rounds):
            # The loader first: the program in C takes what that one took.
            with_loader = loader()
            weight = {"cores": with_loader["cores"], "period": with_loader["wall"] / count}
            with_busy = bench.measure("  a program in C", "steps_busy", **settings, busy=str(busy), **weight)
            losses.append(1 - with_busy["wall"] / with_loader["wall"])
            measured.append((with_loader, with_busy))

    def middle(of: Callable[[tuple[dict[str, Any], dict[str, Any]]], float]) -> float:
        return median(of(pair) for pair in measured)

    detail = {
        "step_ms": middle(lambda pair: 1e3 * pair[0]["wall"] / count),
        "step_ms_beside_c": middle(lambda pair: 1e3 * pair[1]["wall"] / count),
        "waited_ms": middle(lambda pair: 1e3 * pair[0]["waited"]),
        "cores": middle(lambda pair: pair[0]["cores"]),
        "cores_c": middle(lambda pair: pair[1]["cores"]),
    }
    return Figure(name, "loss of a trainer in Python", "share", losses, goal, detail)


def ranks(bench: Bench) -> list[Figure]:
    """Bytes read for two ranks in step, over those for one."""
    source = bench.flights()
    # Enough steps to count where it is to be quick, and a global batch that two ranks can share.
    spec = {"columns": data.COLUMNS, "batch": 4_096}

    def world(size: int) -> Callable[[], dict[str, Any]]:
        def side() -> dict[str, Any]:
            with bench.sidecar() as sidecar:
                options = {"socket": str(sidecar.socket)}
                label = f"{size} of world size {size}"
                return bench.measure(label, "ranks", source, **spec, world=size, options=options)

        return side

    rounds = bench.in_turn("ranks", [world(1), world(2)])
    ratios = [two["bytes_read"] / one["bytes_read"] for one, two in rounds]
    detail = {"bytes_of_one": rounds[0][0]["bytes_read"], "window": rounds[0][0]["window"]}
    return [Figure("ranks_bytes_read", "two ranks in step over one", "ratio", ratios, ("<=", 1.1), detail)]


def cycles(bench: Bench) -> list[Figure]:
    """What is left of loaders that were opened, used and closed: once, whatever the rounds, since it counts."""
    spec = {"warm_cycles": 20, "cycles": 100} if bench.quick else {"warm_cycles": 200, "cycles": 1_000}
    source = data.flights(bench.options.data, 1, data.FLIGHTS_WARM)
    with bench.sidecar() as sidecar:
        spec |= {"columns": data.COLUMNS, "sidecar": sidecar.pid, "options": {"socket": str(sidecar.socket)}}
        result = bench.measure("cycles", "cycles", source, threads=1, **spec)
    figures = []
    for who in ("trainer", "sidecar"):
        grown = {name: result["after"][who][name] - value for name, value in result["before"][who].items()}
        detail = {"cycles": spec["cycles"], "before": result["before"][who], "after": result["after"][who]}
        limits = {"descriptors": 0, "threads": 0, "mappings": SPARE_MAPPINGS, "rss": SPARE_BYTES * spec["cycles"]}
        figures += [
            Figure(f"cycles_{who}_{name}", f"{name} more after {spec['cycles']} cycles",
                   "bytes" if name == "rss" else name, [grown[name]], ("<=", limit), detail)
            for name, limit in limits.items()
        ]  # fmt: skip
        # Said once for each process.
        for figure in figures[-len(limits) + 1 :]:
            figure.detail = {}
    return figures


FIGURES: dict[str, Callable[[Bench], list[Figure]]] = {
    function.__name__: function for function in (images, tabular, handoff, steps, steps_torch, steps_ray, ranks, cycles)
}
