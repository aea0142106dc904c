"""The first batch at 90% of an epoch against that of a fresh start, on local files and on S3.

Every side brings itself to 90% once, in a process of its own outside the clock, on local files, and keeps its
state. No side's state has the location in it, so the same state is loaded on S3. Each measurement is then a
fresh process that makes the loader, loads the state (none, at 0%) and takes one batch, whose rows are checked.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import data
import report
import server
from alternate import Job, run_rounds, say
from case import IMAGE_BATCH, RESUME_LARGE, TABULAR_BATCH, Entry

WHERE = ("local", "s3")
AT = (0, 90)
LARGE = "flights_large"
MOSAICML = "peer_mosaicml"


@dataclass
class Side:
    """One side on one data set: its files, where it stands at 90%, and a job for each place and position."""

    entry: Entry
    set: str
    what: str
    source: data.Source
    batch: int
    spec: dict[str, Any]
    python: str
    position: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None
    jobs: dict[tuple[str, int], Job] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What progress and table call it."""
        return f"{self.entry.name} {self.set}"


def run(options: argparse.Namespace, base: dict[str, Any], entries: list[Entry]) -> tuple[list[Job], dict[str, Any]]:
    """Prepare, measure in turns, print; the jobs and the fields of the JSON line."""
    if problem := server.missing():
        raise SystemExit(f"error: {problem}")
    cache = data.cache_folder(options.data)
    sides = _sides(options, base, entries, cache)
    with tempfile.TemporaryDirectory(prefix=".resume-", dir=cache) as folder:
        for side in sides:
            _bring(options, side, cache, Path(folder))
        with server.Server(Path(folder, "s3")) as store:
            os.environ.update(store.environment())
            _add_jobs(sides, store)
            jobs = [job for side in sides for job in side.jobs.values()]
            run_rounds(jobs, options.rounds, options.timeout)
    for name in dict.fromkeys(side.set for side in sides):
        print(_table([side for side in sides if side.set == name]))
    return jobs, _fields(sides)


def _sides(options: argparse.Namespace, base: dict[str, Any], entries: list[Entry], cache: Path) -> list[Side]:
    """What is measured: `quick` leaves out the large set, `sets` all that it does not name."""
    if options.quick:
        makes = {
            "flights": lambda: data.flights(cache, 1, data.FLIGHTS_WARM),
            "photographs": lambda: data.photographs(cache, data.PHOTOS_WARM),
        }
    else:
        makes = {
            "flights": lambda: data.flights(cache, 1, data.FLIGHTS_PER_FILE),
            "photographs": lambda: data.photographs(cache, data.PHOTOS),
            LARGE: lambda: data.flights(cache, data.FLIGHT_FILES, data.FLIGHTS_PER_FILE),
        }
    if wrong := set(options.sets) - set(makes):
        raise SystemExit(f"error: no set {', '.join(sorted(wrong))}; there are {', '.join(makes)}")
    sides = []
    for name, make in makes.items():
        if options.sets and name not in options.sets:
            continue
        source = make()
        what = "photographs" if name == "photographs" else "flights"
        batch = IMAGE_BATCH if what == "photographs" else TABULAR_BATCH
        for entry in entries:
            spec = base | {"module": entry.module, "variant": entry.variant, "what": what}
            side = Side(entry, name, what, source, batch, spec, _python(options, entry))
            if name == LARGE and entry not in RESUME_LARGE:
                side.problem = "its own format of so many rows and its way to 90% of them take too long to prepare"
            sides.append(side)
    return sides


def _python(options: argparse.Namespace, entry: Entry) -> str:
    special = {"peer_forebay": options.forebay_python, MOSAICML: options.mosaicml_python}
    return special.get(entry.module, options.python)


def _bring(options: argparse.Namespace, side: Side, cache: Path, folder: Path) -> None:
    """Let a side run to 90% and keep its state; where it cannot, keep why."""
    if side.problem:
        return
    if not os.access(side.python, os.X_OK):
        side.problem = f"no interpreter at {side.python}"
        return
    if side.entry.module == MOSAICML:
        try:
            side.source = data.mds(cache, side.what, side.source, side.python, options.threads)
        except (OSError, subprocess.CalledProcessError) as error:
            side.problem = f"its data could not be made: {error}"
            return
    side.spec |= {
        "source": side.source.to_json(),
        "state": str(folder / f"{side.name.replace(' ', '-')}.state"),
        "steps": side.source.rows * 9 // (10 * side.batch),
    }
    job = Job(f"{side.name} to 90%", side.spec | {"kind": "position"}, side.python, lambda: _warm(side.source))
    run_rounds([job], 1, max(options.timeout, 1_200))
    if job.results:
        side.position = job.results[0]
    else:
        side.problem = f"it did not come to 90%: {job.failures[-1]}"


def _add_jobs(sides: list[Side], store: server.Server) -> None:
    stored: dict[data.Source, data.Source] = {}
    for side in sides:
        if side.problem:
            say(f"{side.name}: null, because: {side.problem}")
            continue
        if side.source not in stored:
            stored[side.source] = store.put(side.source)
        for where in WHERE:
            source = side.source if where == "local" else stored[side.source]
            before = (lambda s=side: _warm(s.source)) if where == "local" else lambda: data.warm_folder(store.folder)
            for at in AT:
                spec = side.spec | {"kind": "resume", "at": at, "known": side.position, "source": source.to_json()}
                side.jobs[where, at] = Job(f"{side.name} {where} {at}%", spec, side.python, before)


def _warm(source: data.Source) -> None:
    if Path(source.path).is_dir():
        data.warm_folder(Path(source.path))
    else:
        data.warm_page_cache(source)


def _milliseconds(result: dict[str, Any]) -> float:
    return 1_000 * result["wall"]


def _figures(side: Side, where: str) -> dict[str, Any] | None:
    """The medians of one side in one place, and whether every first batch was the one due."""
    jobs = [side.jobs[where, at] for at in AT if (where, at) in side.jobs]
    middles = [job.middle(_milliseconds) for job in jobs]
    if len(jobs) < len(AT) or None in middles:
        return None
    start, resumed = middles
    return {
        "at_0": report.rounded(start),
        "at_90": report.rounded(resumed),
        "ratio": report.rounded(resumed / start),
        "exact": all(result["exact"] for job in jobs for result in job.results),
    }


def _fields(sides: list[Side]) -> dict[str, Any]:
    sets: dict[str, dict[str, Any]] = {}
    for side in sides:
        part = sets.setdefault(side.set, {"rows": side.source.rows, "forebay": None, "peers": {}})
        figures = {where: _figures(side, where) for where in WHERE}
        if side.entry.module == "peer_forebay":
            part["forebay"] = figures
        else:
            part["peers"][side.entry.name] = figures
    return {"bench": "resume", "unit": "ms"} | sets.pop("flights", {}) | sets


def _table(sides: list[Side]) -> str:
    """Two lines a side, local and S3: medians with their ends, ratio, CPU seconds at 90%, size of the state."""
    title = f"{sides[0].set}, {sides[0].source.rows:,} rows"
    head = (
        f"{title:32}{'0%, ms':>8}{'least':>8}{'most':>8}{'90%, ms':>10}{'least':>8}{'most':>8}{'ratio':>8}"
        f"{'CPU s':>8}{'state':>10}  first batch at 90%"
    )
    lines = [head, "-" * len(head)]
    for side in sides:
        for where in WHERE:
            label = f"{side.entry.name}, {where}"
            figures = _figures(side, where)
            if figures is None:
                reasons = [job.failures[-1] for (w, _), job in side.jobs.items() if w == where and job.failed]
                lines.append(f"{label:32}{'null':>8}  {side.problem or (reasons or ['not run'])[0]}")
                continue
            line = f"{label:32}"
            for at, width in zip(AT, (8, 10), strict=True):
                job = side.jobs[where, at]
                least, most = job.ends(_milliseconds) or (0.0, 0.0)
                line += f"{figures[f'at_{at}']:>{width},.0f}{least:>8,.0f}{most:>8,.0f}"
            cpu = side.jobs[where, 90].middle(lambda r: r["cpu"]) or 0
            right = "the one due" if figures["exact"] else "OTHER ROWS than the uninterrupted run's"
            if version := side.position["version"]:
                right += f" (version {version})"
            lines.append(f"{line}{figures['ratio']:>8.2f}{cpu:>8.2f}{side.position['bytes']:>8,} B  {right}")
    return "\n".join([*lines, ""])
