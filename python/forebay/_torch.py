"""A loader inside a torch DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, get_worker_info

from forebay._errors import UnsupportedError
from forebay._loader import remake

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay._loader import Loader


class Steps(IterableDataset):
    """The steps of a loader, shared by the workers of a DataLoader; see `Loader.as_torch`."""

    def __init__(self, loader: Loader) -> None:
        super().__init__()
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is None:
            return iter(self._loader)
        if self._loader._is_stream:
            # Also with one worker: it begins anew with every loop, and cannot say where it was.
            msg = (
                "loader.as_torch(): the steps of a stream are made in one process\n"
                "  hint: use num_workers=0, or the loader itself: its threads do the work"
            )
            raise UnsupportedError(msg)
        return self._loader._steps(worker.id, worker.num_workers)

    def __len__(self) -> int:
        return len(self._loader)

    def __reduce__(self) -> tuple[Callable[..., Steps], tuple[Any, ...]]:
        # For workers that are spawned: the files are listed again there, and the state says whether
        # they are the same.
        return _again, self._loader._again()


def _again(*recipe: Any) -> Steps:
    return Steps(remake(*recipe))
