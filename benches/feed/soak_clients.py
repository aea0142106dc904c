"""The clients of a soak: started, stopped, killed, and asked what they have done."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from daemon import PATIENCE, until

HERE = Path(__file__).resolve().parent
# Names as in soak_client.py, which is not imported: it has Forebay, and this process shall not.
KINDS = ["pictures", "rows", "workers", "ranks", "breaks", "held"]
SECONDS = (2.0, 20.0)
# Seconds beyond its own for which a client may be busy (imports, the sidecar away, the machine full) before it hangs.
LATE = 120.0


class Run(Protocol):
    """What clients need of the run that they belong to."""

    draw: random.Random
    counts: Counter[str]
    sidecar: object

    def fail(self, text: str) -> None:
        """Note a failure."""
        ...


@dataclass
class One:
    """A client process."""

    name: str
    process: subprocess.Popen[str]
    log: Path
    due: float
    still_until: float = 0.0
    ended_by_us: bool = False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it; one that has ended is not waited for yet, so its number is still its own."""
        os.kill(self.process.pid, number)


class Clients:
    """All of them."""

    def __init__(self, run: Run, folder: Path, environment: dict[str, str]) -> None:
        self.run, self.folder, self.environment = run, folder, environment
        self.all: list[One] = []
        self.number = 0

    def keep(self, count: int) -> None:
        """See who has ended, wake who stood still long enough, and start new ones."""
        now = time.monotonic()
        for one in list(self.all):
            if one.still_until and now > one.still_until:
                one.still_until = 0.0
                one.signal(signal.SIGCONT)
            if one.process.poll() is not None:
                self._ended(one)
            elif now > one.due and not one.still_until:
                self.run.fail(f"{one.name} hangs: {_stacks(one.process.pid)}")
                self._kill(one)
        while len(self.all) < count:
            self._start()

    def kill(self) -> None:
        """Kill one of them, whatever it does."""
        if self.all:
            self.run.counts["clients killed"] += 1
            self._kill(self.run.draw.choice(self.all))

    def stand_still(self, seconds: float) -> None:
        """Let one of them stand still."""
        moving = [one for one in self.all if not one.still_until and one.process.poll() is None]
        if moving:
            one = self.run.draw.choice(moving)
            one.still_until = time.monotonic() + seconds
            # What it stands still for is not its fault.
            one.due += seconds
            one.signal(signal.SIGSTOP)
            self.run.counts["clients stopped for a while"] += 1

    def end_all(self) -> None:
        """End them in all ways: some by themselves, some when asked, some at once."""
        for one in self.all:
            one.signal(signal.SIGCONT)
            one.still_until = 0.0
            how = self.run.draw.choice([None, signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
            if how and one.process.poll() is None:
                one.ended_by_us = True
                one.signal(how)
                self.run.counts[f"clients ended with {how.name}"] += 1
        for one in list(self.all):
            if not until(lambda one=one: one.process.poll() is not None, max(one.due - time.monotonic(), PATIENCE)):
                self.run.fail(f"{one.name} does not end: {_stacks(one.process.pid)}")
                self._kill(one)
            else:
                self._ended(one)

    def kill_all(self) -> None:
        """Leave nobody behind."""
        for one in list(self.all):
            self._kill(one)

    def _start(self) -> None:
        draw = self.run.draw
        kind, seed, seconds = draw.choice(KINDS), draw.randrange(2**31), draw.uniform(*SECONDS)
        self.number += 1
        log = self.folder / f"client-{self.number}.log"
        words = [kind, str(seed), f"{seconds:.1f}", str(self.run.sidecar.socket), str(self.folder)]
        with log.open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, str(HERE / "soak_client.py"), *words],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.run.counts[f"clients of kind {kind}"] += 1
        self.all.append(One(f"{kind} {seed} {seconds:.1f}", process, log, time.monotonic() + seconds + LATE))

    def _kill(self, one: One) -> None:
        one.ended_by_us = True
        one.process.kill()
        one.process.wait()
        self._ended(one)

    def _ended(self, one: One) -> None:
        self.all.remove(one)
        assert one.process.stdout is not None
        if one.process.returncode == 0:
            # Only here: workers of a client that was killed live for some seconds, and have its pipe open.
            for name, count in json.loads(one.process.stdout.read()).items():
                self.run.counts[f"{name} checked" if name != "pauses" else "pauses survived"] += count
            self.run.counts["clients that came to their end"] += 1
        elif not one.ended_by_us:
            tail = " | ".join(one.log.read_text().strip().splitlines()[-3:])
            self.run.fail(f"{one.name} ended with {one.process.returncode}: {tail}")
        one.process.stdout.close()
        one.log.unlink()


def _stacks(pid: int) -> str:
    """Where the threads of a process wait, as far as the kernel says."""
    waits = Counter()
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            waits[f"{(task / 'comm').read_text().strip()} in {(task / 'wchan').read_text()}"] += 1
        except OSError:
            continue
    return ", ".join(f"{count} × {what}" for what, count in sorted(waits.items()))
