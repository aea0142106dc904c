"""Loaders that a sidecar serves, beside those of the same process: `python benches/feed/run.py`.

Run it with the interpreter of the peers' environment (`.venv-peers`), which has Forebay in release mode; README.md
says what is measured. A JSON line for each figure, one for the machine, then a table.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "peers"))

import data
import processes
import report
from alternate import say
from bench import Bench, Failed, Figure
from figures import FIGURES


def main() -> int:
    """Measure, print."""
    options = _arguments()
    cpus = sorted(os.sched_getaffinity(0))[: options.threads]
    if len(cpus) < options.threads:
        raise SystemExit(f"error: {options.threads} threads asked, but only {len(cpus)} CPUs are there")
    report.warn_if_busy()
    processes.adopt_orphans()
    # The sidecars inherit the CPUs.
    processes.pin(cpus)
    date = {"date": time.strftime("%Y-%m-%d %H:%M %Z"), "rounds": options.rounds, "quick": options.quick}
    print(json.dumps({"host": report.machine() | date}), flush=True)
    bench, figures = Bench(options, cpus), []
    for name in options.only:
        try:
            done = FIGURES[name](bench)
        except Failed as problem:
            done = [Figure(name, (FIGURES[name].__doc__ or "").split(".")[0], "", [], reason=str(problem))]
        figures += done
        for figure in done:
            print(json.dumps(figure.to_json(), ensure_ascii=False), flush=True)
    print(_table(figures))
    return 0


def _table(figures: list[Figure]) -> str:
    head = f"{'':28}{'value':>12}{'least':>12}{'most':>12}  {'unit':12}{'goal':>12}  {'met':6}what"
    lines = [head, "-" * (len(head) + 30)]
    for figure in figures:
        shown = figure.to_json()
        numbers = "".join(f"{shown.get(name, ''):>12}" for name in ("least", "most"))
        met = {True: "yes", False: "NO", None: "-"}[figure.met]
        value, goal = "null" if figure.value is None else shown["value"], shown["goal"] or "-"
        lines.append(
            f"{figure.name:28}{value:>12}{numbers}  {figure.unit:12}{goal:>12}  {met:6}{figure.reason or figure.what}"
        )
    return "\n".join(lines)


def _release_binary() -> str:
    target = os.environ.get("CARGO_TARGET_DIR") or "target"
    return str(data.ROOT / target / "release" / "forebay")


def _arguments() -> argparse.Namespace:
    names = ", ".join(FIGURES)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="measurements of each figure (default: 5; 1 with --quick)")
    parser.add_argument("--quick", action="store_true", help="small sets, few samples: does it work?")
    parser.add_argument("--only", default="", help=f"some of these, separated by commas: {names}")
    parser.add_argument("--threads", type=int, default=2, help="CPUs for everybody (default: 2)")
    parser.add_argument("--timeout", type=float, default=400, help="seconds for one measurement (default: 400)")
    parser.add_argument("--data", help="folder for the generated sets (default: target/bench-data)")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has Forebay (default: this one)")
    parser.add_argument("--forebay", type=Path, default=_release_binary(), help="the command (default: %(default)s)")
    options = parser.parse_args()
    options.only = [name for name in options.only.split(",") if name] or list(FIGURES)
    if unknown := set(options.only) - set(FIGURES):
        raise SystemExit(f"error: no figures are called {', '.join(sorted(unknown))}; there are {names}")
    if not options.forebay.exists():
        raise SystemExit(f"error: no {options.forebay}; `make bench-feed` builds it, or name one with --forebay")
    options.rounds = options.rounds or (1 if options.quick else 5)
    options.data = data.cache_folder(options.data)
    return options


if __name__ == "__main__":
    # Ended from outside, it still ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("stopped")
        sys.exit(130)
