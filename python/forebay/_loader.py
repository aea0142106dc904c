"""Loaders: epochs of batches, and a position that can be saved."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forebay import _arguments, _forebay
from forebay._world import discover

if TYPE_CHECKING:
    from forebay._dataset import Dataset
    from forebay._torch import Board


class Loader:
    """Epochs of batches over a dataset; made by `Dataset.loader`.

    Iterating gives one epoch: a dict from column name to tensor for each step (an `ArrowBatch`
    with ``format="arrow"``). Tensors share the engine's memory; it is used again when the last of
    a batch's tensors is gone. Reaching the end raises the epoch by one, so the next loop sees
    another order; leaving the loop early does not, and the next loop starts the epoch again.

    `state_dict` is the position, a handful of numbers; `load_state_dict` lets the next loop go on
    from it, on any number of ranks.

    Where `Dataset.explode` multiplies rows, the loader delivers endless streams: one iteration is
    ``steps=`` steps, and the next goes on where it ended. See `merge_states`.

    Examples
    --------
    >>> loader = ds.loader(batch_size=64, seed=7)  # doctest: +SKIP
    >>> for batch in loader:  # doctest: +SKIP
    ...     train(batch["image"], batch["label"])
    """

    def __init__(self, dataset: Dataset, options: str, *, discovers: bool) -> None:
        self._dataset = dataset
        self._options = options
        self._native: _forebay.Loader | _forebay.RemoteLoader = self._open()
        # Where rank and world size were not given, a launcher may still start after the loader was
        # made. They are fixed when the order is first looked at.
        self._discovers = discovers
        self._fixed = False
        # Workers of a DataLoader that were started and are kept: they are told of a new position.
        self._board: Board | None = None

    def _open(self) -> _forebay.Loader | _forebay.RemoteLoader:
        return self._dataset._native.loader(self._options)

    def _fix_world(self) -> None:
        """Take rank and world size from whoever launches this process; later changes are errors."""
        if not self._discovers:
            return
        found = discover()
        if found is None or found == self._native.world:
            self._fixed = True
            return
        if self._fixed:
            rank, size = self._native.world
            msg = (
                f"this process was rank {rank} of {size} when the loader was first used, and now "
                f"is rank {found[0]} of {found[1]}; make the loader after the process group"
            )
            raise RuntimeError(msg)
        self._native.set_world(*found)
        self._fixed = True

    def __len__(self) -> int:
        """Steps of one whole epoch: the same on every rank, exact before the first batch.

        Where rows are multiplied it is the ``steps=`` of the loader.
        """
        self._fix_world()
        return len(self._native)

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration delivers, from 0."""
        return self._native.epoch

    @property
    def rows(self) -> int:
        """Rows of one epoch over all ranks, after filters.

        Where rows are multiplied: those of the source, after the filters before the explode.
        """
        return self._native.rows

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration delivers.

        A position that was loaded with `load_state_dict` stays if it is one of this epoch.

        Parameters
        ----------
        epoch : int
            From 0.

        Raises
        ------
        TypeError
            If `epoch` is not a whole number.
        ValueError
            If `epoch` is negative or beyond 63 bits.
        InvalidInputError
            Where rows are multiplied, if it is not the current one: an iteration begins where the
            one before ended, so another one can only be entered through a state.
        """
        epoch = _arguments.whole("set_epoch", "epoch", epoch)
        if not 0 <= epoch < 2**63:
            msg = f"set_epoch({epoch}): an epoch is a number from 0 to 2**63 - 1"
            raise ValueError(msg)
        self._native.set_epoch(epoch)
        self._tell_workers()

    def state_dict(self) -> dict[str, Any]:
        """Give the position: what your loop received, never what was made ahead.

        Every rank that has made the same number of steps has the same state, so saving that of one
        rank is enough. It is plain data (under 1 KiB unless rows are multiplied), for
        ``torch.save``, JSON or anything else.

        Returns
        -------
        dict
            ``epoch`` and ``samples`` (of all ranks together), ``finished`` (the last batch was
            delivered, and the loop not yet left), and what they are a position in: ``snapshot``
            (the data), ``plan`` (columns and steps), ``shuffle``, ``seed``,
            ``global_batch_size``, ``lanes``, ``window``, ``version``.

            Where rows are multiplied, ``kind`` is ``"stream"``, ``steps`` (of the iteration) takes
            the place of ``samples``, and ``positions`` has the places of this rank's lanes: save
            the states of all ranks, and put them together with `merge_states`.

        Examples
        --------
        >>> import forebay as fb
        >>> ds = fb.read_parquet("examples/data/flights", columns=["distance"])
        >>> loader = ds.loader(batch_size=512, seed=7, format="numpy")
        >>> batches = iter(loader)
        >>> first = next(batches)
        >>> state = loader.state_dict()
        >>> state["samples"]
        512
        >>> other = ds.loader(batch_size=512, seed=7, format="numpy")
        >>> other.load_state_dict(state)
        >>> bool((next(iter(other))["distance"] == next(batches)["distance"]).all())
        True
        """
        self._fix_world()
        return json.loads(self._native.state())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next iteration go on from a position, on any number of ranks.

        The lanes and the window of the state hold from then on. Another batch size is allowed: the
        order of the samples stays, the borders of the batches move. An iterator that is still held
        goes on as it was, and no longer moves the position.

        Parameters
        ----------
        state_dict : mapping
            What `state_dict` gave. An empty one changes nothing.

        Raises
        ------
        InvalidInputError
            A state of other data, other columns or steps, another shuffle or seed, or one that is
            damaged. The message says what differs, and the loader is as it was. Where rows are
            multiplied, also another global batch size, and a state that lacks a lane of this rank.
        UnsupportedError
            A state of a later version of Forebay.
        """
        self._fix_world()
        if not isinstance(state_dict, Mapping):
            raise _arguments.wrong(
                "load_state_dict", "state_dict", state_dict, "what state_dict() gave"
            )
        try:
            text = json.dumps(dict(state_dict))
        except (TypeError, ValueError) as e:
            msg = "load_state_dict(...): expected what state_dict() gave, plain numbers and texts"
            raise TypeError(msg) from e
        self._native.load_state(text)
        self._tell_workers()

    def _next_state(self) -> str:
        """Give the position at which the next loop begins, as JSON."""
        self._fix_world()
        return self._native.next_state()

    def _tell_workers(self) -> None:
        if self._board is not None:
            self._board.write(self._next_state())

    def as_torch(self) -> Any:
        """Give the loader as an ``IterableDataset`` for a torch ``DataLoader``.

        Use it with ``DataLoader(loader.as_torch(), batch_size=None, num_workers=M)``. Worker w
        makes the steps w, w + M, … of this rank, so the sequence is the loader's own for any M.
        The loader itself needs no workers: this is for code that insists on a ``DataLoader``.
        Workers do not move the position: call `set_epoch` before each loop. Where rows are
        multiplied, M is 0.

        Returns
        -------
        torch.utils.data.IterableDataset
        """
        from forebay._torch import Board, Steps

        if self._board is None and not self._is_stream:
            self._board = Board()
        return Steps(self, self._board)

    def stats(self) -> dict[str, Any]:
        """Counters and gauges of this loader.

        Returns
        -------
        dict
            ``rows``, ``batches``, ``batch_bytes`` (the bytes of their values) and ``bytes_read``
            so far, and ``retries``, attempts at reads that failed and were made again; of the
            rows, ``bad_rows`` with a bad value (see `Dataset.map_image`), ``dropped_rows`` that
            others were delivered for, and ``repeated_rows``, those others; seconds in
            ``fetch_seconds`` (summed over reads at the same time), ``decode_seconds``,
            ``transform_seconds`` and ``assemble_seconds`` (summed over threads; the decoding of
            pictures belongs to their transforms), ``consumer_wait_seconds`` (your loop waiting
            for data) and ``backpressure_seconds`` (every batch that may be prefetched
            was ready, and your loop did not take one); ``batches_making``, which the threads
            work on or have before them now, and ``batches_ready``; bytes in ``memory_used``,
            ``memory_peak``, ``memory_limit``, ``held_by_consumer`` and ``held_by_device`` (released
            batches that a GPU may still copy from); the resolved ``lanes``, ``window`` and
            ``threads``; and ``read_amplification``: rows of the windows that this
            rank opens in an epoch over its share of all rows. It is about 1 where the world size
            divides ``lanes``, and up to the world size where ranks share lanes. ``pinned`` says
            whether batches are in page-locked memory.
        """
        return json.loads(self._native.stats())

    @property
    def _is_stream(self) -> bool:
        """Whether rows are multiplied, so that the lanes are streams without an end."""
        return "steps" in json.loads(self._options)

    def _again(self) -> tuple[Any, ...]:
        """What makes this loader again in another process: a function and its arguments."""
        # Batches of a worker are copied to the trainer's process, and CUDA would take some hundred
        # MiB of the device for each worker.
        options = json.dumps({**json.loads(self._options), "pin_memory": False})
        return remake, *self._recipe(), options, self._native.world, self._next_state()

    def _recipe(self) -> tuple[Any, ...]:
        return Loader, self._dataset

    def _steps(self, first: int, stride: int) -> _Epoch:
        """Start the current epoch, or one worker's part of its steps."""
        self._fix_world()
        return _Epoch(self._native.start(first, stride))

    def __iter__(self) -> Iterator[Any]:
        """Start the current epoch, or go on from a loaded position."""
        return self._steps(0, 1)

    def __reduce__(self) -> tuple[Any, ...]:
        """Refuse to be pickled or copied: threads and memory stay in their process."""
        msg = (
            "a Loader cannot be pickled or copied: pass the Dataset, and "
            "make the loader in the worker"
        )
        raise TypeError(msg)

    def __repr__(self) -> str:
        steps = len(self._native)
        return f"forebay.Loader({steps} steps of epoch {self.epoch}, {self.rows} rows)"


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Put the states of all ranks together, for loaders over plans that multiply rows.

    There the state of a rank has the places of its own lanes only. The result has those of all
    lanes, and any rank of any world size that divides the lanes can load it. Other loaders have
    the same state on every rank, and the result is that one.

    Parameters
    ----------
    states : sequence of mapping
        What `Loader.state_dict` gave on every rank after the same step, in any order.

    Returns
    -------
    dict
        One state.

    Raises
    ------
    InvalidInputError
        States of different runs or steps (the message says which, and what differs), a lane that
        none of them has, or that two have at different places.

    Examples
    --------
    >>> import tempfile
    >>> import pyarrow as pa, pyarrow.parquet as pq
    >>> import forebay as fb
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = pa.table({"id": [1, 2, 3, 4], "tokens": [[1], [2, 2], [3], [4, 4]]})
    ...     pq.write_table(table, f"{folder}/docs.parquet")
    ...     ds = fb.read_parquet(folder).explode("tokens")
    ...     options = {"global_batch_size": 4, "lanes": 2, "steps": 5}
    ...     ranks = [ds.loader(**options, rank=r, world_size=2) for r in range(2)]
    ...     state = fb.merge_states([loader.state_dict() for loader in ranks])
    ...     ds.loader(**options, rank=0, world_size=1).load_state_dict(state)
    >>> [lane["lane"] for lane in state["positions"]]
    [0, 1]
    """
    many = _arguments.items(states)
    if many is None or not all(isinstance(state, Mapping) for state in many):
        raise _arguments.wrong("merge_states", "states", states, "a list of states")
    try:
        texts = [json.dumps(dict(state)) for state in many]
    except (TypeError, ValueError) as e:
        msg = "merge_states(...): expected what state_dict() gave, plain numbers and texts"
        raise TypeError(msg) from e
    return json.loads(_forebay.merge_states(texts))


def remake(
    make: Callable[..., Loader], source: Any, options: str, world: tuple[int, int], state: str
) -> Loader:
    """Make a loader again where another process had it."""
    loader = make(source, options, discovers=False)
    loader._native.set_world(*world)
    loader._native.load_state(state)
    return loader


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
