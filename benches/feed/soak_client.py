"""One client of a soak: `soak_client.py KIND SEED SECONDS SOCKET FOLDER`.

It loads what its seed draws, and compares each batch with what is due: the ids with those of a loader in this
process, which reads nothing but ids, and all other values with what belongs to the ids. It says what it has done
in one line of JSON, or ends with a traceback.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import forebay as fb
import soak_data

T = TypeVar("T")
# A sidecar that was killed is back within seconds.
PATIENCE = 90.0


class Client:
    """A seed, and what came of it."""

    def __init__(self, kind: str, seed: int, seconds: float, socket: str, folder: Path) -> None:
        self.draw = random.Random(seed)
        self.end = time.monotonic() + seconds
        self.socket = socket
        self.counts = {"rows": 0, "batches": 0, "epochs": 0, "pauses": 0}
        on_pictures = kind == "pictures" or (kind in ("held", "breaks") and self.draw.random() < 0.3)
        self.seen = np.load(folder / "pictures.npy") if on_pictures else None
        self.dataset = (soak_data.pictures if on_pictures else soak_data.rows)(folder)
        ids = fb.read_parquet(folder / ("pictures.parquet" if on_pictures else "rows.parquet"), columns=["id"])
        # All of the order's own options: others than these do not change it, and the columns that are read neither.
        self.order: dict[str, Any] = {"seed": self.draw.randrange(1_000), "epoch_end": "drop"}
        self.order |= {"shuffle": self.draw.choice(["window", "window", "none"]), "format": "numpy"}
        # Blocks of pictures are larger, and have to fit as well.
        windows = [1, 4] if on_pictures else [1, 4, 16]
        self.order |= {"lanes": self.draw.choice([1, 2, 4]), "window": self.draw.choice(windows)}
        self.order["global_batch_size"] = self.draw.choice([16, 32] if on_pictures else [64, 1_024, 8_192])
        self.reference = ids.loader(num_threads=1, rank=0, world_size=1, **self.order)

    def loader(self, **options: Any) -> fb.Loader:
        """Open one at the sidecar, when it is there."""
        options = {"num_threads": self.draw.choice([1, 2]), "prefetch": self.draw.choice([None, 2, 8])} | options
        options = {"rank": 0, "world_size": 1} | self.order | options

        def opened() -> fb.Loader:
            connection = fb.connect(self.socket, reconnect_timeout=PATIENCE)
            return connection.loader(self.dataset, memory_limit="200MiB", **options)

        return patient(opened)

    def due(self, epoch: int) -> np.ndarray:
        """The ids of an epoch, a line for each step."""
        self.reference.set_epoch(epoch)
        return np.stack([batch["id"] for batch in self.reference])

    def check(self, batch: dict[str, Any], due: np.ndarray, where: str) -> None:
        """Compare a batch with the ids that are due."""
        ids = np.asarray(batch["id"])
        if not np.array_equal(ids, due):
            raise AssertionError(f"{where}: ids {ids[:5]}… where {due[:5]}… are due")
        name, expected = ("x", soak_data.values(ids)) if self.seen is None else ("image", self._pictures(ids))
        if not np.array_equal(np.asarray(batch[name]), expected):
            raise AssertionError(f"{where}: `{name}` is not what belongs to the ids {ids[:5]}…")

    def took(self, batch: dict[str, Any], due: np.ndarray, where: str) -> None:
        """Check a batch as it comes, and count it."""
        self.check(batch, due, where)
        self.counts["rows"] += len(due)
        self.counts["batches"] += 1

    def over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.end

    def _pictures(self, ids: np.ndarray) -> np.ndarray:
        assert self.seen is not None
        return self.seen[ids % len(self.seen)]


def plain(client: Client) -> None:
    """Epoch after epoch."""
    loader = client.loader()
    while not client.over():
        follow(client, loader, f"epoch {loader.epoch}", client.due(loader.epoch))
    client.counts["pauses"] = loader.stats()["pauses"]


def follow(client: Client, batches: Iterable[dict[str, Any]], where: str, due: np.ndarray) -> None:
    """Take an epoch to its end, or until the time is over."""
    step = -1
    for step, batch in enumerate(batches):
        client.took(batch, due[step], f"{where}, step {step}")
        if client.over():
            return
    if step + 1 != len(due):
        raise AssertionError(f"{where}: {step + 1} steps, not {len(due)}")
    client.counts["epochs"] += 1


def workers(client: Client) -> None:
    """Behind torch's DataLoader; the workers open loaders of their own."""
    from torch.utils.data import DataLoader

    loader = client.loader()
    while not client.over():
        due = client.due(loader.epoch)
        many = DataLoader(loader.as_torch(), batch_size=None, num_workers=client.draw.choice([1, 2]))
        follow(client, many, f"epoch {loader.epoch} of workers", due)
        loader.set_epoch(loader.epoch + 1)


def ranks(client: Client) -> None:
    """Two ranks in step."""
    both = [client.loader(rank=rank, world_size=2) for rank in range(2)]
    while not client.over():
        epoch = both[0].epoch
        follow(client, _together(both), f"epoch {epoch} of ranks", client.due(epoch))
        for loader in both:
            loader.set_epoch(epoch + 1)
    client.counts["pauses"] = sum(loader.stats()["pauses"] for loader in both)


def _together(both: list[fb.Loader]) -> Iterator[dict[str, np.ndarray]]:
    for parts in zip(*both, strict=True):
        yield {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def breaks(client: Client) -> None:
    """Leave an epoch early, then begin it again, or go on from a state in another loader."""
    loader = client.loader()
    while not client.over():
        due = client.due(loader.epoch)
        leave = client.draw.randrange(1, len(due))
        for step, batch in enumerate(loader):
            client.took(batch, due[step], f"epoch {loader.epoch}, step {step}")
            if step + 1 == leave:
                break
        state, begin = loader.state_dict(), 0
        if client.draw.random() < 0.5:
            loader, begin = client.loader(), leave
            patient(lambda loader=loader, state=state: loader.load_state_dict(state))
        follow(client, loader, f"after {leave} steps of epoch {loader.epoch}", due[begin:])
        loader.set_epoch(loader.epoch + client.draw.randrange(1, 3))


def held(client: Client) -> None:
    """Keep batches, for longer than their loader lives; look at them again when they go."""
    kept: list[tuple[dict[str, Any], np.ndarray]] = []

    def let_go(count: int) -> None:
        for _ in range(count):
            batch, due = kept.pop(client.draw.randrange(len(kept)))
            client.check(batch, due, "a batch that was held")

    while not client.over():
        loader = client.loader()
        due = client.due(loader.epoch)
        for step, batch in enumerate(loader):
            client.took(batch, due[step], f"epoch {loader.epoch}, step {step}, {len(kept)} held")
            if client.draw.random() < 0.3:
                kept.append((batch, due[step]))
            # As many as its share of memory has room for, beside those on their way.
            let_go(max(len(kept) - 20, 0))
            if client.over():
                break
        client.counts["pauses"] += loader.stats()["pauses"]
        del loader
    let_go(len(kept))


def patient(action: Callable[[], T]) -> T:
    """Try again while nobody listens. A loader in the middle of an epoch waits by itself."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return action()
        except (fb.NotFoundError, fb.StorageError):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


KINDS = {"pictures": plain, "rows": plain, "workers": workers, "ranks": ranks, "breaks": breaks, "held": held}


def main() -> None:
    """Run one client."""
    kind, seed, seconds, socket, folder = sys.argv[1:]
    client = Client(kind, int(seed), float(seconds), socket, Path(folder))
    KINDS[kind](client)
    print(json.dumps(client.counts))


if __name__ == "__main__":
    main()
