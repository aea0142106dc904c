"""The process's byte budget, as gauges."""

from __future__ import annotations

from typing import NamedTuple

from forebay import _forebay


class MemoryUse(NamedTuple):
    """Bytes under the process's budget.

    Attributes
    ----------
    limit : int
        Half of the cgroup's memory, or what ``FOREBAY_MEMORY_LIMIT`` says.
    used : int
        Reserved now; 0 when every loader is closed and every batch is gone.
    peak : int
        The most that was ever reserved.
    accounts : int
        Loaders and jobs that are open or whose batches are still held.
    """

    limit: int
    used: int
    peak: int
    accounts: int


def memory() -> MemoryUse:
    """Read the gauges of the process's byte budget.

    Examples
    --------
    >>> import forebay as fb
    >>> fb.memory().used
    0
    """
    return MemoryUse(*_forebay.memory())
