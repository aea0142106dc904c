"""Processes and what they cost: CPU time of a whole tree, pinning, and an end that leaves nobody behind.

Peers start processes in every way there is (forked workers, daemons that detach). Linux's child subreaper
makes each of them a descendant of ours for ever, so that their CPU time is counted, and they can be ended,
without guessing by name.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time

PR_SET_CHILD_SUBREAPER = 36
TICKS = os.sysconf("SC_CLK_TCK")
# Children that outlive a measurement: a server that all of them share.
SPARED: set[int] = set()


def adopt_orphans() -> None:
    """Let orphaned descendants become our children instead of init's."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def pin(cpus: list[int]) -> None:
    """Keep this process, and all that it starts, on these CPUs."""
    os.sched_setaffinity(0, cpus)


def tree_cpu_seconds(root: int) -> float:
    """User and system time of a process and its descendants, the dead ones included.

    The dead are in their parent's cutime and cstime once waited for; a zombie still shows its own.
    """
    table = _table()
    return sum(table[pid][1] for pid in _tree(root, table)) / TICKS


def stolen_seconds(cpus: set[int]) -> float:
    """Time that the host of a virtual machine gave to others while these CPUs had work."""
    names = {f"cpu{cpu}" for cpu in cpus}
    with open("/proc/stat") as file:
        lines = [line.split() for line in file]
    # user nice system idle iowait irq softirq steal, see proc_stat(5).
    return sum(int(fields[8]) for fields in lines if fields[0] in names) / TICKS


class CpuMeter:
    """CPU seconds of a tree from the block's start to its end, in `seconds`; `stolen` is what its CPUs lost.

    Exact where every parent waits for its children. A parent that does not (Ray's raylet) loses the time of
    its dead; with `watch` the total is read four times a second, and what it falls by is put back.
    """

    def __init__(self, root: int, watch: bool = False) -> None:
        self.root, self.watch = root, watch
        self.lost = self.last = self.start = self.seconds = self.stolen = 0.0
        self.cpus = os.sched_getaffinity(root)
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> CpuMeter:
        self.start = self.last = tree_cpu_seconds(self.root)
        self.stolen = stolen_seconds(self.cpus)
        if self.watch:
            self.thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        if self.watch:
            self.ended.set()
            self.thread.join()
        self._read()
        self.seconds = self.last + self.lost - self.start
        self.stolen = stolen_seconds(self.cpus) - self.stolen

    def _watch(self) -> None:
        while not self.ended.wait(0.25):
            self._read()

    def _read(self) -> None:
        now = tree_cpu_seconds(self.root)
        self.lost += max(self.last - now, 0.0)
        self.last = now


def descendants(root: int) -> list[int]:
    """Every process below `root` that runs, but the spared and theirs."""
    table = _table()
    spared = {pid for keep in SPARED for pid in _tree(keep, table)}
    return [pid for pid in _tree(root, table) if pid != root and pid not in spared and table[pid][2] != "Z"]


def end_descendants(root: int, grace: float = 3.0) -> list[int]:
    """End every descendant of `root` but the spared: ask, wait, then kill. Returns those that had to be asked."""
    asked: list[int] = []
    deadline = time.monotonic() + grace
    while True:
        _reap()
        table = _table()
        spared = {pid for keep in SPARED for pid in _tree(keep, table)}
        left = [pid for pid in _tree(root, table) if pid != root and pid not in spared]
        late = time.monotonic() > deadline
        # The dead count as left too: they come to us, and are waited for, when their parents are gone.
        if not left or time.monotonic() > deadline + grace:
            return asked
        for pid in left:
            if table[pid][2] != "Z" and (late or pid not in asked):
                asked.append(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        time.sleep(0.05)


def _reap() -> None:
    """Wait for our own dead children that nobody else waits for."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _table() -> dict[int, tuple[int, int, str]]:
    """Return pid: (parent, CPU ticks with waited-for children, state) for every process."""
    out = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    # The command may hold spaces and brackets; the fields start after the last one.
                    fields = file.read().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            out[int(name)] = (int(fields[1]), sum(int(f) for f in fields[11:15]), fields[0])
    return out


def _tree(root: int, table: dict[int, tuple[int, int, str]]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in table.items():
        children.setdefault(parent, []).append(pid)
    out, todo = [], [root]
    while todo:
        pid = todo.pop()
        if pid in table:
            out.append(pid)
            todo += children.get(pid, [])
    return out
