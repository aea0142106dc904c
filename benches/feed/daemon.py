"""A real `forebay sidecar` beside a benchmark, and what a process holds of the machine.

A sidecar here is ended with the block that it was started for, whatever happens in it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import processes

# Longer than a sidecar needs to answer or to give back what the dead have held, however busy the machine is.
PATIENCE = 60.0


@dataclass(frozen=True)
class Held:
    """What a process holds at one moment."""

    descriptors: int
    threads: int
    mappings: int
    rss: int

    @staticmethod
    def of(pid: int | str = "self") -> Held:
        """Look at a process in /proc; `rss` is in bytes."""
        folder = Path(f"/proc/{pid}")
        resident = re.search(r"VmRSS:\s+(\d+) kB", (folder / "status").read_text())
        return Held(
            descriptors=len(os.listdir(folder / "fd")),
            threads=len(os.listdir(folder / "task")),
            mappings=(folder / "maps").read_text().count("\n"),
            rss=1024 * int(resident[1]) if resident else 0,
        )

    def to_json(self) -> dict[str, int]:
        """Return the fields."""
        return asdict(self)


class Sidecar:
    """A running sidecar; a context manager that ends it."""

    def __init__(self, binary: Path, folder: Path, *options: str) -> None:
        self.socket = folder / "forebay.sock"
        self.log = folder / "sidecar.log"
        self._command = [str(binary), "sidecar", "--socket", str(self.socket), "--metrics", "127.0.0.1:0", "--json"]
        self._command += options
        self.start()

    def __enter__(self) -> Sidecar:
        return self

    def __exit__(self, *failure: object) -> None:
        if self.process.poll() is None:
            self.kill() if failure[0] else self.stop()

    @property
    def pid(self) -> int:
        """The process."""
        return self.process.pid

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        with self.log.open("a") as log:
            self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log, text=True)
        # Measurements end all that they leave behind, and this is not of them.
        processes.SPARED.add(self.pid)
        assert self.process.stdout is not None
        said = json.loads(self.process.stdout.readline() or "{}")
        if "metrics" not in said:
            raise RuntimeError(f"the sidecar does not start: {said or self.log.read_text()}")
        self._page = said["metrics"]

    def kill(self) -> None:
        """End it at once, as `kill -9` does."""
        self.process.kill()
        self._gone()

    def stop(self) -> int:
        """End it in order; its exit status."""
        self.process.terminate()
        self._gone()
        return self.process.returncode

    def _gone(self) -> None:
        self.process.communicate(timeout=PATIENCE)
        processes.SPARED.discard(self.pid)

    def status(self) -> dict[str, Any]:
        """What `/status` says."""
        with urllib.request.urlopen(f"{self._page}/status", timeout=PATIENCE) as answer:
            return json.load(answer)

    def unquiet(self) -> str:
        """What is not back at zero, in words; empty where all is."""
        status = self.status()
        memory = {kind: status["memory"][kind] for kind in ("window", "slab", "consumer")}
        if status["clients"] == 0 and not status["loaders"] and not any(memory.values()):
            return ""
        return f"{status['clients']} clients, {len(status['loaders'])} loaders, bytes {memory}"


def until(condition: Callable[[], bool], seconds: float = PATIENCE, pause: float = 0.02) -> bool:
    """Wait for something to come true, and look again after a pause; whether it did in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True
