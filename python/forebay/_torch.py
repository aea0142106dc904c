"""A loader inside a torch DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from forebay._errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay._loader import Loader


class Board:
    """Memory that workers share with the process of the loader: its newest position.

    A worker that is kept between loops (``persistent_workers``) has a loader of its own, which no
    call of the user's reaches.
    """

    # A position of known counts takes less than 1 KiB.
    ROOM = 4096

    def __init__(self) -> None:
        self._text = torch.zeros(self.ROOM, dtype=torch.uint8).share_memory_()
        # How often it was written, and the length of the text.
        self._head = torch.zeros(2, dtype=torch.int64).share_memory_()

    def write(self, state: str) -> None:
        data = state.encode()
        self._text[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._head[1] = len(data)
        self._head[0] += 1

    @property
    def edition(self) -> int:
        return int(self._head[0])

    def read(self) -> str:
        return bytes(self._text[: int(self._head[1])].tolist()).decode()


class Steps(IterableDataset):
    """The steps of a loader, shared by the workers of a DataLoader; see `Loader.as_torch`."""

    def __init__(self, loader: Loader, board: Board | None) -> None:
        super().__init__()
        self._loader = loader
        self._board = board
        # In a worker: where its last loop began, and the edition of the board that it knows.
        self._began: str | None = None
        self._edition = 0

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is None:
            return iter(self._loader)
        if self._board is None:
            # Also with one worker: it begins anew with every loop, and cannot say where it was.
            msg = (
                "loader.as_torch(): the steps of a stream are made in one process\n"
                "  hint: use num_workers=0, or the loader itself: its threads do the work"
            )
            raise UnsupportedError(msg)
        self._go_to_the_beginning(self._board)
        return self._loader._steps(worker.id, worker.num_workers)

    def _go_to_the_beginning(self, board: Board) -> None:
        """Begin where the loader of the main process does, however far this worker's own is.

        A worker of the first loop is a copy of it. One that is kept begins at what was set or
        loaded since, else where its last loop began, as new workers would.
        """
        if self._began is None:
            self._began = self._loader._next_state()
        else:
            if board.edition != self._edition:
                self._began = board.read()
            # Not load_state_dict: that writes to the board.
            self._loader._native.load_state(self._began)
        self._edition = board.edition

    def __len__(self) -> int:
        return len(self._loader)

    def __reduce__(self) -> tuple[Callable[..., Steps], tuple[Any, ...]]:
        # For workers that are spawned: the files are listed again there, and the state says whether
        # they are the same.
        return _again, (self._board, *self._loader._again())


def _again(board: Board | None, make: Callable[..., Loader], *recipe: Any) -> Steps:
    return Steps(make(*recipe), board)
