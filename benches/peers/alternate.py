"""Peers in turn, round after round, each in a process of its own, under the same conditions.

A machine's speed drifts within minutes; peers measured one after another in blocks get its moods. So every
round runs every peer once, each round starts with the next one, and the medians are taken over the rounds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import processes

HERE = Path(__file__).resolve().parent


@dataclass
class Job:
    """One peer in one bench: its specification, interpreter, and the results so far."""

    label: str
    spec: dict[str, Any]
    python: str
    before: Callable[[], None]
    program: Path = HERE / "measure.py"
    results: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """A second failure ends a peer's part."""
        return len(self.failures) > 1

    def middle(self, figure: Callable[[dict[str, Any]], float]) -> float | None:
        """Median of a figure over the rounds; None for a peer that failed."""
        return None if self.failed or not self.results else median(figure(r) for r in self.results)

    def ends(self, figure: Callable[[dict[str, Any]], float]) -> tuple[float, float] | None:
        """Smallest and largest of a figure over the rounds."""
        if self.failed or not self.results:
            return None
        values = [figure(r) for r in self.results]
        return min(values), max(values)


def run_rounds(jobs: list[Job], rounds: int, timeout: float) -> None:
    """Fill the jobs' results; failures are told on stderr as they happen."""
    processes.adopt_orphans()
    for number in range(rounds):
        turn = number % max(len(jobs), 1)
        for job in jobs[turn:] + jobs[:turn]:
            while not job.failed and len(job.results) <= number:
                say(f"round {number + 1}/{rounds}  {job.label} …")
                job.before()
                start = time.monotonic()
                result = measure_once(job, timeout)
                if "error" in result:
                    job.failures.append(result["error"])
                    say(f"  {job.label}: {result['error']}")
                    if result.get("final"):
                        job.failures.append(result["error"])  # trying again cannot help
                else:
                    job.results.append(result)
                    say(f"  {job.label}: {_short(result)} ({time.monotonic() - start:.0f} s in all)")
    for job in jobs:
        if job.failed:
            say(f"{job.label}: null, because: {job.failures[-1]}")


def say(text: str) -> None:
    """Progress and reasons go to stderr: stdout holds the table and the JSON line."""
    print(text, file=sys.stderr, flush=True)


def measure_once(job: Job, timeout: float) -> dict[str, Any]:
    """Run a job's program in a fresh process; its result, or `error` with the reason."""
    # Short, because Ray's sockets lie below it and a socket's path ends at 107 bytes.
    with tempfile.TemporaryDirectory(prefix="fb-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        result, log = Path(folder, "result.json"), Path(folder, "log")
        with open(log, "wb") as output:
            child = subprocess.Popen(
                [job.python, str(job.program), json.dumps(job.spec), str(result)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(job.spec["threads"]),
                cwd=folder,
                start_new_session=True,
            )
            try:
                status = child.wait(timeout)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                processes.end_descendants(os.getpid())
        if status is None:
            return {"error": f"no result within {timeout:.0f} s"}
        if not result.exists():
            return {"error": f"ended with status {status} and no result: {_tail(log, 3)}"}
        outcome = json.loads(result.read_text())
        if "error" in outcome and not outcome.get("final"):
            say(_tail(log, 25))
        return outcome


def _environment(threads: int) -> dict[str, str]:
    """Two threads for everybody, no telemetry, no progress bars."""
    return os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "POLARS_MAX_THREADS": str(threads),
        "RAYON_NUM_THREADS": str(threads),
        "DAFT_ANALYTICS_ENABLED": "0",
        "DAFT_PROGRESS_BAR": "0",
        "DO_NOT_TRACK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
        "PYTHONPATH": str(HERE),  # worker processes of every peer find the recipes
        "PYTHONWARNINGS": "ignore",
    }


def _short(result: dict[str, Any]) -> str:
    if "above" in result:
        return f"{result['above'] / 2**20:.0f} MiB"
    return f"{result['wall']:.3f} s, {result['rows'] / result['wall']:,.0f} rows/s, {result['cpu']:.2f} CPU s"


def _tail(log: Path, lines: int) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
