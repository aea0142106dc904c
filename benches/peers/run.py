"""Benchmarks against peers: `python benches/peers/run.py images|tabular|startup|resume|memory`.

Run it with the interpreter of the peers' own environment (`.venv-peers`, see README.md). Forebay is taken
from that environment where it is installed there, else from the checkout's `.venv`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import data
import report
import resuming
from alternate import Job, run_rounds, say
from case import BENCHES, IMAGE_BATCH, IMAGE_SIZE, TABULAR_BATCH, Entry

SEED = 7
MIB = 2**20


def main() -> int:
    """Parse, measure, print."""
    options = _arguments()
    # Everything that runs inherits the CPUs, this process included.
    cpus = sorted(os.sched_getaffinity(0))[: options.threads]
    if len(cpus) < options.threads:
        raise SystemExit(f"error: {options.threads} threads asked, but only {len(cpus)} CPUs are there")
    report.warn_if_busy()
    about = report.machine() | {"date": time.strftime("%Y-%m-%d %H:%M %Z"), "rounds": options.rounds}
    bench = {"images": images, "tabular": tabular, "startup": startup, "resume": resume, "memory": memory}
    jobs, fields = bench[options.bench](options, cpus)
    if options.json_out:
        details = [{"label": j.label, "spec": j.spec, "results": j.results, "failures": j.failures} for j in jobs]
        record = {"line": fields, "about": about, "jobs": details}
        Path(options.json_out).write_text(json.dumps(record, indent=1) + "\n")
    print(f"{about['date']}, {about['cpu']}, {len(cpus)} CPUs, {about['rounds']} rounds, {about['system']}")
    print(", ".join(f"{name} {version}" for name, version in about["versions"].items() if version))
    print(report.line(fields), flush=True)
    return 0


def images(options: argparse.Namespace, cpus: list[int]) -> tuple[list[Job], dict[str, Any]]:
    """Photographs a second, RandomResizedCrop to float32."""
    cache = data.cache_folder(options.data)
    warm = data.photographs(cache, data.PHOTOS_WARM)
    source = warm if options.quick else data.photographs(cache, data.PHOTOS)
    jobs = _jobs(options, cpus, "throughput", source, warm)
    held = _images_held(options, cpus, source)
    run_rounds([*jobs.values(), held], options.rounds, options.timeout)

    def cpu(result: dict[str, Any]) -> float:
        return 1_000 * result["cpu"] / result["rows"]

    _print(jobs, _rate, "img/s", cpu, "CPU s / 1,000 images")
    value = {e.name: _middle(j, _rate) for e, j in jobs.items()}
    above = report.rounded(held.middle(lambda r: r["above"] / MIB))
    bound = options.image_memory_limit_mib + IMAGE_BATCH * 3 * IMAGE_SIZE**2 * 4 / MIB
    print(f"forebay's memory above its imports: {above} MiB; limit and one batch are {bound:.0f} MiB")
    evaluation = {name: value.pop(name) for name in list(value) if name.endswith("_eval")}
    return [*jobs.values(), held], {
        "bench": "images",
        "unit": "img/s",
        "forebay": value.pop("forebay", None),
        "forebay_uint8": value.pop("forebay_uint8", None),
        "limit": value.pop("limit", None),
        "peers": value,
        "eval": {name.removesuffix("_eval"): figure for name, figure in evaluation.items()},
        "cpu_s_per_1000": {e.name: _middle(j, cpu) for e, j in jobs.items()},
        "memory_mib": above,
    }


def _images_held(options: argparse.Namespace, cpus: list[int], source: data.Source) -> Job:
    """Forebay on the photographs with a limit of memory, and lanes and windows that fit it."""
    job = _job(options, cpus, Entry("forebay", "peer_forebay"), "memory", source, source, "forebay_memory")
    job.spec["options"] = {"memory_limit": options.image_memory_limit_mib * MIB, "lanes": 4, "window": 1}
    return job


def tabular(options: argparse.Namespace, cpus: list[int]) -> tuple[list[Job], dict[str, Any]]:
    """Rows a second, shuffled and in file order."""
    cache = data.cache_folder(options.data)
    warm = data.flights(cache, 1, data.FLIGHTS_WARM)
    source = warm if options.quick else data.flights(cache, data.FLIGHT_FILES, data.FLIGHTS_PER_FILE)
    jobs = _jobs(options, cpus, "throughput", source, warm)
    run_rounds(list(jobs.values()), options.rounds, options.timeout)
    _print(jobs, _rate, "rows/s", lambda r: 1e6 * r["cpu"] / r["rows"], "CPU s / million rows")
    ours: dict[str, Any] = {}
    peers: dict[str, dict[str, Any]] = {"shuffled": {}, "file": {}}
    for entry, job in jobs.items():
        value = _middle(job, _rate)
        if entry.module == "peer_forebay":
            ours[entry.variant or entry.order] = value
        else:
            peers[entry.order][entry.name] = value
    return list(jobs.values()), {
        "bench": "tabular",
        "unit": "rows/s",
        "forebay": ours.get("shuffled"),
        "peers": peers["shuffled"],
        "limit": None,
        "forebay_file_order": ours.get("file"),
        "file_order": peers["file"],
        "forebay_full": ours.get("full"),
        "forebay_full_later": ours.get("full_later"),
    }


def startup(options: argparse.Namespace, cpus: list[int]) -> tuple[list[Job], dict[str, Any]]:
    """Milliseconds from imports done to the first batch, each in a fresh process."""
    cache = data.cache_folder(options.data)
    source = data.photographs(cache, data.PHOTOS_WARM if options.quick else data.PHOTOS)
    jobs = _jobs(options, cpus, "first_batch", source, source)
    run_rounds(list(jobs.values()), options.rounds, options.timeout)
    _print(jobs, lambda r: 1_000 * r["wall"], "ms", lambda r: r["cpu"], "CPU s")
    value = {e.name: _middle(j, lambda r: 1_000 * r["wall"]) for e, j in jobs.items()}
    if "ray" in value:
        ray = next(j for e, j in jobs.items() if e.name == "ray")
        value["ray_with_init"] = _middle(ray, lambda r: 1_000 * (r["wall"] + r["prepare"]))
    ours = value.pop("forebay", None)
    return list(jobs.values()), {"bench": "startup", "unit": "ms", "forebay": ours, "peers": value, "limit": None}


def resume(options: argparse.Namespace, cpus: list[int]) -> tuple[list[Job], dict[str, Any]]:
    """Milliseconds to the first batch at 90% of an epoch and at 0%, on local files and on S3."""
    base = {"bench": "resume", "threads": options.threads, "seed": SEED, "cpus": cpus}
    return resuming.run(options, base, _entries(options))


def memory(options: argparse.Namespace, cpus: list[int]) -> tuple[list[Job], dict[str, Any]]:
    """Forebay's peak memory above its imports at one and at ten million rows."""
    cache = data.cache_folder(options.data)
    sizes = {f"{n}m": data.flights(cache, n, data.MEMORY_FILE_ROWS) for n in (1, 10)}
    limit = options.memory_limit_mib * MIB
    jobs: dict[tuple[str, str], Job] = {}
    for order, more in {"file": {}, "shuffled": {"lanes": 8, "window": 1}}.items():
        entry = Entry("forebay", "peer_forebay", order=order)
        for size, source in sizes.items():
            job = _job(options, cpus, entry, "memory", source, source, f"{order} {size}")
            job.spec["options"] = {"memory_limit": limit} | more
            jobs[order, size] = job
    run_rounds(list(jobs.values()), options.rounds, options.timeout)
    # What Forebay promises: its limit, one slab and 64 MiB for everything that is not data.
    slab = TABULAR_BATCH * len(data.COLUMNS) * 4 / MIB
    fields: dict[str, Any] = {
        "bench": "memory",
        "unit": "MiB",
        "memory_limit": options.memory_limit_mib,
        "bound": report.rounded(options.memory_limit_mib + slab + 64),
    }
    for order in ("file", "shuffled"):
        small, large = (jobs[order, s].middle(lambda r: r["above"] / MIB) for s in sizes)
        growth = None if small is None or large is None else large / small - 1
        name = "file_order" if order == "file" else order
        fields[name] = {"1m": report.rounded(small), "10m": report.rounded(large), "growth": report.rounded(growth)}
    for (order, size), job in jobs.items():
        ends = job.ends(lambda r: r["above"] / MIB)
        shown = f"{ends[0]:.0f} to {ends[1]:.0f} MiB" if ends else f"null: {job.failures[-1]}"
        print(f"{order:10}{size:>5} rows  {shown}")
    return list(jobs.values()), fields


def _entries(options: argparse.Namespace) -> list[Entry]:
    """Those that take part: all of a bench, or those of `--only`."""
    entries = [e for e in BENCHES[options.bench] if not options.only or e.name in options.only]
    unknown = set(options.only) - {e.name for e in BENCHES[options.bench]}
    if unknown:
        known = ", ".join(dict.fromkeys(e.name for e in BENCHES[options.bench]))
        raise SystemExit(f"error: no peer {', '.join(sorted(unknown))} in {options.bench}; there are {known}")
    return entries


def _jobs(
    options: argparse.Namespace, cpus: list[int], kind: str, source: data.Source, warm: data.Source
) -> dict[Entry, Job]:
    out = {}
    for entry in _entries(options):
        twice = options.bench == "tabular" and entry.module != "peer_forebay"
        label = f"{entry.name} ({'file order' if entry.order == 'file' else entry.order})" if twice else entry.name
        out[entry] = _job(options, cpus, entry, kind, source, warm, label)
    return out


def _job(
    options: argparse.Namespace, cpus: list[int], entry: Entry, kind: str, source: data.Source, warm: data.Source,
    label: str,
) -> Job:  # fmt: skip
    spec = {
        "bench": "tabular" if options.bench == "memory" else options.bench,
        "kind": kind,
        "module": entry.module,
        "variant": entry.variant,
        "order": entry.order,
        "source": source.to_json(),
        "warm": warm.to_json(),
        "threads": options.threads,
        "seed": SEED,
        "cpus": cpus,
    }
    if entry.module == "peer_dali":
        spec["may_drop_tail"] = IMAGE_BATCH
    python = options.forebay_python if entry.module == "peer_forebay" else sys.executable

    def warm_pages() -> None:
        data.warm_page_cache(warm)
        data.warm_page_cache(source)

    return Job(label, spec, python, warm_pages)


def _print(jobs: dict[Entry, Job], figure: Any, unit: str, cpu: Any, cpu_unit: str) -> None:
    notes = {job.label: entry.note for entry, job in jobs.items()}
    print(report.table(list(jobs.values()), figure, unit, cpu, cpu_unit, notes))
    if taken := report.stolen(list(jobs.values())):
        print(taken)


def _rate(result: dict[str, Any]) -> float:
    return result["rows"] / result["wall"]


def _middle(job: Job, figure: Any) -> float | None:
    return report.rounded(job.middle(figure))


def _forebay_python() -> str:
    """The interpreter that has Forebay: this one, else the checkout's `.venv`."""
    here = subprocess.run(
        [sys.executable, "-c", "import forebay"], cwd="/", capture_output=True, check=False
    ).returncode
    other = data.ROOT / ".venv" / "bin" / "python"
    if here == 0 or not other.exists():
        return sys.executable
    return str(other)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", choices=["images", "tabular", "startup", "resume", "memory"])
    parser.add_argument("--rounds", type=int, help="measurements of each peer (default: 5; 3 for memory)")
    parser.add_argument("--only", default="", help="peers to run, separated by commas (default: all)")
    parser.add_argument("--sets", default="", help="sets of `resume` to run, separated by commas (default: all)")
    parser.add_argument("--quick", action="store_true", help="the small warm-up set and one round: does it work?")
    parser.add_argument("--threads", type=int, default=2, help="CPUs and threads of every peer (default: 2)")
    parser.add_argument("--timeout", type=float, default=400, help="seconds for one measurement (default: 400)")
    parser.add_argument("--data", help="folder for the generated sets (default: target/bench-data)")
    parser.add_argument("--forebay-python", help="interpreter that has Forebay (default: this one, else .venv's)")
    parser.add_argument("--mosaicml-python", help="interpreter that has MosaicML Streaming, for `resume`")
    parser.add_argument("--memory-limit-mib", type=int, default=256, help="memory_limit of `memory` (default: 256)")
    parser.add_argument(
        "--image-memory-limit-mib", type=int, default=300, help="memory_limit of `images`' last line (default: 300)"
    )
    parser.add_argument("--json-out", help="file for every single measurement")
    options = parser.parse_args()
    options.only = [name for name in options.only.split(",") if name]
    options.sets = [name for name in options.sets.split(",") if name]
    options.rounds = options.rounds or (1 if options.quick else 3 if options.bench == "memory" else 5)
    options.python = sys.executable
    options.mosaicml_python = options.mosaicml_python or str(data.ROOT / ".venv-peers-mosaicml" / "bin" / "python")
    options.forebay_python = options.forebay_python or _forebay_python()
    return options


if __name__ == "__main__":
    # Ended from outside, it still ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("stopped")
        sys.exit(130)
