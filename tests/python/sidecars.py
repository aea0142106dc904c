"""Sidecars for tests: real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import support

import forebay as fb


class Process:
    """A running `forebay sidecar`."""

    def __init__(self, socket: Path, *options: str, **environment: str) -> None:
        self.socket = socket
        self._command = ["sidecar", "--socket", str(socket), "--metrics", "127.0.0.1:0", "--json"]
        self._command += options
        self._environment = environment
        self.log = socket.parent / f"{socket.name}.log"
        self.start()

    def start(self) -> None:
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [str(support.BINARY), *self._command],
                env={**os.environ, **self._environment},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        said = json.loads(line)
        assert "error" not in said, said
        self.page: str = said["metrics"]

    def connect(self, **options: Any) -> fb.Sidecar:
        return fb.connect(self.socket, **options)

    def status(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.page}/status", timeout=30) as answer:
            return json.load(answer)

    def used(self) -> int:
        """Bytes of its budget that are held."""
        memory = self.status()["memory"]
        return memory["window"] + memory["slab"] + memory["consumer"]

    def until(self, condition: Callable[[dict[str, Any]], bool], what: str) -> None:
        support.until(lambda: condition(self.status()), f"{what}: {self.status()}")

    def is_quiet(self) -> None:
        """Wait until nobody is connected, and all memory is back."""
        self.until(lambda status: status["clients"] == 0 and not status["loaders"], "no client")
        support.until(lambda: self.used() == 0, f"memory back at 0: {self.status()['memory']}")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def stop(self) -> int:
        """End it in order; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.communicate(timeout=support.DEADLINE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        return self.process.returncode
