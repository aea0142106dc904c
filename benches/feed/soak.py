"""Trainers that come, go, stand still and die around one sidecar: `python benches/feed/soak.py --minutes 20`.

Promise: whatever happens to clients and sidecar, each client gets exactly the samples that are due, and when all are
gone, nothing is left of them: not in the sidecar's memory, descriptors, threads and mappings, not in /dev/shm, and no
process. The run is rounds of load with a rest behind each. In the first half the sidecar is killed now and then as
well; in the second half one sidecar lives through all rounds, and what it holds at rest must not grow.

Everything that is drawn comes from the seed. When it happens is the machine's matter, so that a seed says what was
tried, and repeats a failure only if that does not hang on time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "peers"))

import data
import processes
import report
import soak_data
import soak_report
from daemon import PATIENCE, Held, Sidecar, until
from soak_clients import Clients

# At least three rests in each half, and at most twenty minutes' worth of them: a rest costs seconds.
ROUNDS = (6, 12)
ROUND_SECONDS = 100.0
# Mean seconds between the events of one kind.
KILLS, STOPS, SIDECAR_KILLS = 6.0, 5.0, 15.0
# Seconds for which somebody stands still, and for which the sidecar is gone.
STILL, AWAY = (0.1, 5.0), (0.0, 3.0)
TICK = 0.1
SAMPLE = 5.0
# Mappings come and go with the allocator's own; memory is not given back to the byte.
SPARE_MAPPINGS = 32
SPARE_RSS = 16 << 20


class Soak:
    """A run, and what it has found."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.draw = random.Random(options.seed)
        self.folder, self.options = folder, options
        self.start = time.monotonic()
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.samples: list[tuple[float, int]] = []
        self.rests: list[dict[str, Any]] = []
        self.sidecar = Sidecar(options.forebay, folder, "--memory", "1GiB", "--grace", "5")
        environment = os.environ | {"PYTHONPATH": str(Path(data.__file__).parent)}
        self.clients = Clients(self, folder, environment)

    def fail(self, text: str) -> None:
        """Note a failure; the run goes on, since more may be found."""
        self.failures.append(f"after {self.elapsed():.0f} s: {text}")
        print(f"FAILURE {self.failures[-1]}", file=sys.stderr, flush=True)

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start

    def run(self) -> None:
        """All rounds."""
        seconds = 60 * self.options.minutes
        rounds = min(max(round(seconds / ROUND_SECONDS), ROUNDS[0]), ROUNDS[1])
        for number in range(rounds):
            settled = number >= rounds // 2
            if number == rounds // 2:
                # The life that is measured begins.
                self.sidecar.kill()
                self.sidecar.start()
            self.load(seconds / rounds, settled)
            self.rest(settled)
        status = self.sidecar.stop()
        if status != 0:
            self.fail(f"the sidecar ends with {status} when it is asked to end")

    def load(self, seconds: float, settled: bool) -> None:
        """A round of clients of all kinds, and of what happens to them."""
        end = time.monotonic() + seconds
        sampled = 0.0
        while (now := time.monotonic()) < end:
            self.alive()
            self.clients.keep(self.options.clients)
            if self.happens(KILLS):
                self.clients.kill()
            if self.happens(STOPS):
                self.clients.stand_still(self.draw.uniform(*STILL))
            if not settled and self.happens(SIDECAR_KILLS):
                self.counts["sidecar killed"] += 1
                self.sidecar.kill()
                time.sleep(self.draw.uniform(*AWAY))
                self.sidecar.start()
            if now - sampled > SAMPLE:
                sampled = now
                self.samples.append((self.elapsed(), Held.of(self.sidecar.pid).rss))
            time.sleep(TICK)

    def happens(self, mean: float) -> bool:
        """Whether an event of this mean distance happens in this tick."""
        return self.draw.random() < TICK / mean

    def alive(self) -> None:
        """Start the sidecar again if it died of itself, which it must not."""
        if self.sidecar.process.poll() is not None:
            log = self.sidecar.log.read_text().splitlines()[-5:]
            self.fail(f"the sidecar ended by itself with {self.sidecar.process.returncode}: {log}")
            self.sidecar.start()

    def rest(self, settled: bool) -> None:
        """End all clients, and look at what is left of them."""
        self.clients.end_all()
        self.alive()
        if not until(lambda: not self.sidecar.unquiet()):
            self.fail(f"{PATIENCE:.0f} s after the last client: {self.sidecar.unquiet()}")
        # Threads without work end after a while, and files are closed behind the last message.
        first = next((rest for rest in self.rests if rest["settled"]), None) if settled else None
        if first and not until(lambda: self.beyond(first) == []):
            self.fail(f"at rest: {'; '.join(self.beyond(first))}")
        time.sleep(1.0)
        held = Held.of(self.sidecar.pid).to_json()
        self.rests.append({"second": round(self.elapsed()), "settled": settled} | held)
        print(json.dumps(self.rests[-1] | {"counts": self.counts}), file=sys.stderr, flush=True)

    def beyond(self, first: dict[str, Any]) -> list[str]:
        """What the sidecar holds more of than at the first rest of its life."""
        now = Held.of(self.sidecar.pid).to_json()
        spare = {"descriptors": 0, "threads": 0, "mappings": SPARE_MAPPINGS}
        return [f"{now[n]} {n}, at first {first[n]}" for n in spare if now[n] > first[n] + spare[n]]

    def grown(self) -> str:
        """Whether memory at rest grows over the settled half, in words; empty where not."""
        # The first rest is the warm-up: caches and pools have their size after a round of everything.
        series = [rest["rss"] for rest in self.rests if rest["settled"]][1:]
        half = max(len(series) // 2, 1)
        early, late = min(series[:half]), min(series[-half:])
        more = late - early
        return f"RSS at rest grew by {more / 2**20:.1f} MiB" if more > max(SPARE_RSS, early // 10) else ""


def main() -> int:
    """Run, look at what is left, write it down."""
    options = _arguments()
    print(f"seed {options.seed}", flush=True)
    processes.adopt_orphans()
    shm = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory(prefix="soak-", dir="/tmp") as name:
        soak_data.make(Path(name))
        soak = Soak(options, Path(name))
        try:
            soak.run()
        finally:
            if soak.sidecar.process.poll() is None:
                soak.sidecar.kill()
            soak.clients.kill_all()
    if grown := soak.grown():
        soak.fail(grown)
    # A worker of torch looks every five seconds whether its trainer still lives.
    if not until(lambda: not processes.descendants(os.getpid())):
        soak.fail(f"{len(processes.end_descendants(os.getpid()))} processes are left")
    if left := set(os.listdir("/dev/shm")) - shm:
        soak.fail(f"/dev/shm has {sorted(left)[:5]}")
    about = report.machine() | {"date": time.strftime("%Y-%m-%d"), "seed": options.seed, "minutes": options.minutes}
    result = {
        "passed": not soak.failures,
        "failures": soak.failures,
        "counts": dict(sorted(soak.counts.items())),
        "rests": soak.rests,
        "rss_under_load": [[round(second), rss] for second, rss in soak.samples],
        "host": about,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    options.page.write_text(soak_report.page(result))
    print(json.dumps({name: result[name] for name in ("passed", "failures", "counts")}, indent=1))
    return 0 if result["passed"] else 1


def _arguments() -> argparse.Namespace:
    binary = data.ROOT / (os.environ.get("CARGO_TARGET_DIR") or "target") / "release" / "forebay"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20, help="how long (default: 20)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31), help="default: drawn")
    parser.add_argument("--clients", type=int, default=4, help="processes at the same time (default: 4)")
    parser.add_argument("--forebay", type=Path, default=binary, help="the command (default: %(default)s)")
    parser.add_argument("--json", type=Path, default=data.ROOT / "target" / "soak.json", help="default: %(default)s")
    parser.add_argument("--page", type=Path, default=data.ROOT / "docs" / "soak.md", help="default: %(default)s")
    options = parser.parse_args()
    if not options.forebay.exists():
        raise SystemExit(f"error: no {options.forebay}; `make soak` builds it, or name one with --forebay")
    return options


if __name__ == "__main__":
    # Ended from outside, it still ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
