"""Loaders: epochs of batches."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from forebay import _arguments, _forebay


class Loader:
    """Epochs of batches over a dataset; made by `Dataset.loader`.

    Iterating gives one epoch: a dict from column name to tensor for each step (an `ArrowBatch`
    with ``format="arrow"``). Tensors share the engine's memory; it is used again when the last of
    a batch's tensors is gone. Reaching the end raises the epoch by one, so the next loop sees
    another order; leaving the loop early does not.

    Examples
    --------
    >>> loader = ds.loader(batch_size=64, seed=7)  # doctest: +SKIP
    >>> for batch in loader:  # doctest: +SKIP
    ...     train(batch["image"], batch["label"])
    """

    def __init__(self, native: _forebay.Loader) -> None:
        self._native = native

    def __len__(self) -> int:
        """Steps of one epoch: the same on every rank, exact before the first batch."""
        return len(self._native)

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration delivers, from 0."""
        return self._native.epoch

    @property
    def rows(self) -> int:
        """Rows of one epoch over all ranks, after filters."""
        return self._native.rows

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration delivers.

        Parameters
        ----------
        epoch : int
            From 0.

        Raises
        ------
        TypeError
            If `epoch` is not a whole number.
        ValueError
            If `epoch` is negative or beyond 64 bits.
        """
        epoch = _arguments.whole("set_epoch", "epoch", epoch)
        if not 0 <= epoch < 2**64:
            msg = f"set_epoch({epoch}): an epoch is a number from 0 to 2**64 - 1"
            raise ValueError(msg)
        self._native.set_epoch(epoch)

    def stats(self) -> dict[str, Any]:
        """Counters and gauges of this loader.

        Returns
        -------
        dict
            ``rows``, ``batches`` and ``bytes_read`` so far; seconds in ``fetch_seconds``,
            ``decode_seconds``, ``transform_seconds`` (summed over threads) and
            ``consumer_wait_seconds`` (your loop waiting for data); bytes in ``memory_used``,
            ``memory_peak``, ``memory_limit`` and ``held_by_consumer``; the resolved ``lanes``,
            ``window`` and ``threads``.
        """
        return self._native.stats()

    def __iter__(self) -> Iterator[Any]:
        """Start the current epoch."""
        return _Epoch(self._native.start())

    def __reduce__(self) -> tuple[Any, ...]:
        """Refuse to be pickled or copied: threads and memory stay in their process."""
        msg = (
            "a Loader cannot be pickled or copied: pass the Dataset, and "
            "make the loader in the worker"
        )
        raise TypeError(msg)

    def __repr__(self) -> str:
        return f"forebay.Loader({len(self)} steps of epoch {self.epoch}, {self.rows} rows)"


class _Epoch:
    """One running epoch; dropping it stops the engine's work for it."""

    def __init__(self, native: _forebay.Epoch) -> None:
        self._native = native
        # At interpreter exit the background work stops before modules are torn down, so that a
        # process that leaves in mid-epoch exits at once.
        self._finalizer = weakref.finalize(self, native.close)

    def __iter__(self) -> _Epoch:
        return self

    def __next__(self) -> Any:
        batch = self._native.next()
        if batch is None:
            raise StopIteration
        return batch

    def close(self) -> None:
        """Stop the background work now."""
        self._finalizer()
