"""How a figure of `make bench-feed` is measured, and what it is when it is done.

Every measurement is a process of its own, pinned with all others to the same CPUs, as those of `peers` are. What is
compared takes turns within a round, and each round begins with the next one.
"""

from __future__ import annotations

import argparse
import operator
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import data
from alternate import Job, measure_once, say
from daemon import Sidecar

HERE = Path(__file__).resolve().parent
SEED = 7
MEETS = {"<": operator.lt, "<=": operator.le, ">=": operator.ge}


class Failed(Exception):
    """A measurement that did not come to its end, twice; the message says why."""


@dataclass
class Figure:
    """One number with its goal, such as `("<", 0.05)`; None for a number that is there to compare with."""

    name: str
    what: str
    unit: str
    values: Sequence[float]
    goal: tuple[str, float] | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    reason: str = ""

    @property
    def value(self) -> float | None:
        """Median of the rounds."""
        return median(self.values) if self.values else None

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without a goal or a value."""
        if self.goal is None or self.value is None:
            return None
        return MEETS[self.goal[0]](self.value, self.goal[1])

    def to_json(self) -> dict[str, Any]:
        """Return the fields, numbers with four digits."""
        out: dict[str, Any] = {"figure": self.name, "value": short(self.value), "unit": self.unit}
        if self.values:
            out |= {"least": short(min(self.values)), "most": short(max(self.values)), "rounds": len(self.values)}
        out |= {"goal": f"{self.goal[0]} {self.goal[1]:g}" if self.goal else None, "met": self.met}
        return out | ({"reason": self.reason} if self.reason else {}) | short(self.detail)


def short(value: Any) -> Any:
    """Four significant digits, in whatever it is made of: the rest is noise."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: short(v) for name, v in value.items()}
    return [short(v) for v in value] if isinstance(value, list) else value


@dataclass
class Bench:
    """What all figures have in common."""

    options: argparse.Namespace
    cpus: list[int]

    @property
    def quick(self) -> bool:
        """Whether to find out if all of it runs, and no more."""
        return self.options.quick

    @property
    def rounds(self) -> int:
        """How often each figure is measured."""
        return self.options.rounds

    def photographs(self, rows: int = data.PHOTOS) -> data.Source:
        """The photographs of `peers`; few of them where it is to be quick."""
        return data.photographs(self.options.data, data.PHOTOS_WARM if self.quick else rows)

    def flights(self) -> data.Source:
        """The flights of `peers`, likewise."""
        if self.quick:
            return data.flights(self.options.data, 1, data.FLIGHTS_WARM)
        return data.flights(self.options.data, data.FLIGHT_FILES, data.FLIGHTS_PER_FILE)

    @contextmanager
    def sidecar(self, *options: str) -> Iterator[Sidecar]:
        """A fresh sidecar for one measurement: what an earlier one left behind is not in it."""
        folder = tempfile.TemporaryDirectory(prefix="feed-", dir="/tmp")
        with folder as path, Sidecar(self.options.forebay, Path(path), *options) as sidecar:
            yield sidecar

    def measure(self, label: str, kind: str, source: data.Source | None = None, **spec: Any) -> dict[str, Any]:
        """Run one trainer; a failure is tried once more."""
        settings = {
            "kind": kind,
            "module": "peer_forebay",
            "variant": "",
            "order": "shuffled",
            "bench": "",
            "seed": SEED,
        }
        settings |= {"threads": len(self.cpus), "cpus": self.cpus, "options": {}} | spec
        if source:
            data.warm_page_cache(source)
            settings |= {"source": source.to_json()} | {"warm": spec.get("warm", source.to_json())}
        job = Job(label, settings, self.options.python, lambda: None, HERE / "trainer.py")
        for _ in range(2):
            result = measure_once(job, self.options.timeout)
            if "error" not in result:
                say(f"  {label}: {result['wall']:.2f} s, {result['cpu']:.2f} CPU s of the trainer")
                return result
            say(f"  {label}: {result['error']}")
            if result.get("final"):
                break
        raise Failed(f"{label}: {result['error']}")

    def in_turn(self, what: str, sides: Sequence[Callable[[], dict[str, Any]]]) -> list[list[dict[str, Any]]]:
        """Each side once a round, in turn; for each round its results in the order of `sides`."""
        rounds = []
        for number in range(self.rounds):
            say(f"{what}: round {number + 1}/{self.rounds}")
            results: dict[int, dict[str, Any]] = {}
            for turn in range(len(sides)):
                at = (number + turn) % len(sides)
                results[at] = sides[at]()
            rounds.append([results[at] for at in range(len(sides))])
        return rounds
