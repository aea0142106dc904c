"""Loaders that a sidecar on this machine serves."""

from __future__ import annotations

import inspect
import json
import os
from typing import Any

from forebay import _arguments, _forebay
from forebay._dataset import Dataset
from forebay._loader import Loader
from forebay._options import Uri, loader_options

# A container that is restarted is back within this, unless it fails again and again.
_PATIENCE = 300.0


class Sidecar:
    """A sidecar at a socket; made by `connect`."""

    def __init__(self, socket: str, reconnect_timeout: float) -> None:
        self._socket = socket
        self._patience = reconnect_timeout

    def loader(self, dataset: Dataset, batch_size: int | None = None, **options: Any) -> Loader:
        """Make a loader whose work the sidecar does.

        It takes the options of `Dataset.loader`, and has the same promises: the same samples in
        the same order with the same bytes. Batches lie in memory that the sidecar shares with this
        process. The threads, the budget and the cache are the sidecar's; ``num_threads`` and
        ``memory_limit`` bound what this loader takes of them. ``pin_memory`` is about this
        process.

        A sidecar that is gone is waited for, for the ``reconnect_timeout`` of `connect`; the
        loader then goes on at the next sample, and counts a pause in its `stats`.

        Parameters
        ----------
        dataset : Dataset
            What is loaded. The sidecar opens it anew, so it must see the same files at the same
            paths; local paths are made absolute.
        batch_size : int, optional
            Samples a step on this rank.
        **options
            Those of `Dataset.loader`.

        Returns
        -------
        SidecarLoader

        Raises
        ------
        TypeError
            An option that `Dataset.loader` does not have.
        InvalidInputError
            As for `Dataset.loader`; and a step that this sidecar does not know.
        NotFoundError, PermissionDeniedError
            Nobody who listens at the socket; one that serves other users.
        ChangedError
            The sidecar sees other files than the dataset.
        UnsupportedError
            A sidecar of another protocol.

        Examples
        --------
        >>> sidecar = fb.connect("/run/forebay/forebay.sock")  # doctest: +SKIP
        >>> for batch in sidecar.loader(ds, batch_size=256, seed=7):  # doctest: +SKIP
        ...     train(batch["image"], batch["label"])
        """
        if not isinstance(dataset, Dataset):
            raise _arguments.wrong("loader", "dataset", dataset, "a forebay.Dataset")
        given = inspect.signature(Dataset.loader).bind(dataset, batch_size, **options)
        given.apply_defaults()
        arguments = {name: value for name, value in given.arguments.items() if name != "self"}
        text, discovers = loader_options(**arguments)
        return SidecarLoader((dataset, self._socket, self._patience), text, discovers=discovers)

    def status(self) -> dict[str, Any]:
        """Give what the sidecar does: its loaders, stages, memory, and the last five minutes.

        It is what ``forebay top`` shows and ``/status`` serves; see ``docs/metrics.md``.
        """
        return json.loads(_forebay.sidecar_status(self._socket, self._patience))

    def __repr__(self) -> str:
        return f"forebay.Sidecar({self._socket!r})"


class SidecarLoader(Loader):
    """A `Loader` whose work a sidecar does; made by `Sidecar.loader`."""

    _native: _forebay.RemoteLoader

    def __init__(
        self, source: tuple[Dataset, str, float], options: str, *, discovers: bool
    ) -> None:
        self._source = source
        super().__init__(source[0], options, discovers=discovers)

    def _open(self) -> _forebay.RemoteLoader:
        dataset, socket, patience = self._source
        return _forebay.RemoteLoader(socket, dataset._native, self._options, patience)

    def _recipe(self) -> tuple[Any, ...]:
        return SidecarLoader, self._source

    def stats(self) -> dict[str, Any]:
        """Counters and gauges, as `Loader.stats` has them; those of the memory are the sidecar's.

        Of windows that several ranks use, the bytes are counted by the rank that read them.

        Returns
        -------
        dict
            In addition ``pauses``: how often the sidecar was gone and came back.
        """
        own = {"pauses": self._native.pauses, "pinned": self._native.pinned}
        return {**super().stats(), **own}


def connect(socket: Uri, *, reconnect_timeout: float = _PATIENCE) -> Sidecar:
    """Find the sidecar that listens at a socket.

    Parameters
    ----------
    socket : str or path
        What ``forebay sidecar --socket`` was given.
    reconnect_timeout : float, default 300
        Seconds for which the sidecar may be gone while a loader runs. Its loaders wait that long
        for it to come back, then raise `NotFoundError` or `StorageError`.

    Returns
    -------
    Sidecar

    Raises
    ------
    NotFoundError
        Nobody listens there.
    PermissionDeniedError
        The socket may not be used by this user.
    UnsupportedError
        A sidecar of another protocol.
    TypeError, ValueError
        A socket that is no path; a time that is none.

    Examples
    --------
    >>> import forebay as fb
    >>> sidecar = fb.connect("/run/forebay/forebay.sock")  # doctest: +SKIP
    >>> loader = sidecar.loader(ds, batch_size=256, seed=7)  # doctest: +SKIP
    """
    if not isinstance(socket, (str, os.PathLike)):
        raise _arguments.wrong("connect", "socket", socket, "the path of a socket")
    seconds = _arguments.number("connect", "reconnect_timeout", reconnect_timeout)
    if not seconds >= 0:
        msg = f"connect(reconnect_timeout={reconnect_timeout!r}): a time is 0 or more seconds"
        raise ValueError(msg)
    sidecar = Sidecar(_arguments.absolute(_arguments.path("connect", socket)), seconds)
    # A path that is wrong shows here, not in the middle of a program.
    sidecar.status()
    return sidecar
