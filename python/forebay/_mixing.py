"""How well an order mixes: measured, against a permutation of all rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay import _arguments

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from forebay._dataset import Dataset


@dataclass(frozen=True, eq=False, repr=False)
class Mixing:
    """How well an order mixes; made by `mixing` and `mixing_of`.

    Shares are relative: how often two rows have the same file or class, divided by how often they
    have in a permutation of all rows. 1 is a perfect mix; above 1, rows that are alike come
    together more often than they should; below 1, less often. Where no two rows are alike at all,
    it is NaN.

    Attributes
    ----------
    rows : int
        Rows of the order.
    rank_correlation : float
        Spearman's correlation of a row's place in the order and its place in the dataset. 1 is file
        order, -1 reversed; a permutation of n rows has 0, give or take 1 / sqrt(n - 1).
    same_file, same_class : numpy.ndarray, float64 [distance], or None
        Entry d - 1 is for rows that come d places apart. None without `files` or `classes`.
    batch_file, batch_class : float or None
        The same for any two rows of one batch. None without `batch_size`.
    permuted : Mixing or None
        The same figures of a permutation of these rows: the yardstick. It has none itself.
    """

    rows: int
    rank_correlation: float
    same_file: NDArray[np.float64] | None
    same_class: NDArray[np.float64] | None
    batch_file: float | None
    batch_class: float | None
    permuted: Mixing | None

    def __repr__(self) -> str:
        parts = [f"{self.rows} rows", f"rank correlation {self.rank_correlation:.3f}"]
        for kind in ("file", "class"):
            near, batch = getattr(self, f"same_{kind}"), getattr(self, f"batch_{kind}")
            if near is not None:
                parts.append(f"same {kind} {near[0]:.2f} next, {near.mean():.2f} near")
            if batch is not None:
                parts.append(f"same {kind} {batch:.2f} in a batch")
        return f"Mixing({'; '.join(parts)})"


def mixing(
    order: ArrayLike,
    *,
    files: ArrayLike | None = None,
    classes: ArrayLike | None = None,
    distance: int = 16,
    batch_size: int | None = None,
    seed: int = 0,
) -> Mixing:
    """Measure how well an order of rows mixes.

    Parameters
    ----------
    order : array of int, shape [n]
        The ordinal of each row in the dataset, from 0, in the order in which the rows come. It may
        leave rows out.
    files : array, shape [rows of the dataset], optional
        Which file (or block) each row of the dataset is in, by ordinal: numbers or texts.
    classes : array, shape [rows of the dataset], optional
        The class of each row, likewise.
    distance : int, default 16
        How far apart neighbours may be: rows 1, 2, … `distance` places apart are compared. It
        must be less than n.
    batch_size : int, optional
        Rows of a batch, to compare the rows within each. The last one may be smaller.
    seed : int, default 0
        Seed of the permutation that the order is compared with.

    Returns
    -------
    Mixing
        The figures of the order, and in ``permuted`` those of a permutation of the same rows.

    Raises
    ------
    ValueError
        An order that is not one-dimensional, not of whole numbers, or has fewer than two rows;
        ordinals beyond `files` or `classes`, or nulls in them; a `distance` or `batch_size` that
        is not at least 1, or a `distance` that leaves no two rows to compare.

    Examples
    --------
    >>> import forebay as fb
    >>> m = fb.mixing([0, 1, 2, 3, 4, 5], classes=["a", "a", "a", "b", "b", "b"], distance=2)
    >>> m.rank_correlation
    1.0

    In a permutation, 2 of 5 others have the same class. Here, 4 of 5 next to each other have, and
    2 of 4 that are two places apart.

    >>> m.same_class.round(2).tolist()
    [2.0, 1.25]
    """
    rows = np.asarray(order)
    if rows.ndim != 1 or rows.size < 2 or rows.dtype.kind not in "iu":
        msg = (
            "mixing(order): expected at least two row ordinals in one dimension, and got "
            f"{rows.dtype} of shape {rows.shape}"
        )
        raise ValueError(msg)
    distance = _arguments.whole("mixing", "distance", distance)
    seed = _arguments.whole("mixing", "seed", seed)
    if batch_size is not None:
        batch_size = _arguments.whole("mixing", "batch_size", batch_size)
    if seed < 0:
        msg = f"mixing(seed={seed}): must be at least 0"
        raise ValueError(msg)
    if not 1 <= distance < rows.size:
        msg = f"mixing(distance={distance}): must be from 1 to {rows.size - 1}, less than the rows"
        raise ValueError(msg)
    if batch_size is not None and batch_size < 1:
        msg = f"mixing(batch_size={batch_size}): must be at least 1"
        raise ValueError(msg)
    in_files, in_classes = _codes("files", files, rows), _codes("classes", classes, rows)

    def figures(places: NDArray[np.intp] | slice, permuted: Mixing | None) -> Mixing:
        file = None if in_files is None else in_files[places]
        label = None if in_classes is None else in_classes[places]
        return Mixing(
            rows=rows.size,
            rank_correlation=_rank_correlation(rows[places]),
            same_file=None if file is None else _neighbours(file, distance),
            same_class=None if label is None else _neighbours(label, distance),
            batch_file=None if file is None else _batches(file, batch_size),
            batch_class=None if label is None else _batches(label, batch_size),
            permuted=permuted,
        )

    yardstick = figures(np.random.default_rng(seed).permutation(rows.size), None)
    return figures(slice(None), yardstick)


def mixing_of(
    dataset: Dataset,
    key: str,
    *,
    files: str | None = None,
    classes: str | None = None,
    distance: int = 16,
    epoch: int = 0,
    **options: Any,
) -> Mixing:
    """Measure how well the order of a loader mixes, by reading a column or two.

    The lanes and the window are those of the loader with all columns of the dataset; only the
    columns named here are then read, once in file order and once in the order of the epoch. Both
    are held in memory.

    Parameters
    ----------
    dataset : Dataset
        The dataset as it is trained on, filters included.
    key : str
        A column of numbers or texts that tells each row from all others.
    files, classes : str, optional
        Columns that say which file (or block, or source) a row is in, and its class.
    distance : int, default 16
        As for `mixing`.
    epoch : int, default 0
        The epoch to measure.
    **options
        What `Dataset.loader` takes, but for ``rank``, ``world_size``, ``epoch_end`` and ``format``:
        what all ranks receive together is measured, to the last row.

    Returns
    -------
    Mixing
        As of `mixing`, with the batches of the loader; the permutation is drawn with the loader's
        seed.

    Raises
    ------
    ValueError
        A `key` that has the same value in two rows, or nulls; a dataset of fewer than two rows.
    TypeError
        An option that is not one of the loader's, or is fixed here.
    InvalidInputError
        A column that is not there, or options that do not fit together.

    Examples
    --------
    >>> import forebay as fb
    >>> columns = ["month", "day", "carrier", "flight", "distance"]
    >>> ds = fb.read_parquet("examples/data/flights", columns=columns)
    >>> ds = ds.with_column("who", "concat_ws(' ', month, day, carrier, flight)")
    >>> m = fb.mixing_of(ds, "who", files="month", batch_size=256, lanes=1, window=1)
    >>> bool(m.same_file[0] > 3)  # the next row is nearly always of the same month
    True
    >>> m = fb.mixing_of(ds, "who", files="month", batch_size=256)
    >>> bool(0.9 < m.same_file[0] < 1.1)
    True
    """
    for argument, column in (("key", key), ("files", files), ("classes", classes)):
        if not isinstance(column, str) and (column is not None or argument == "key"):
            raise _arguments.wrong("mixing_of", argument, column, "the name of a column")
    distance = _arguments.whole("mixing_of", "distance", distance)
    for fixed in ("rank", "world_size", "epoch_end", "format"):
        if fixed in options:
            msg = f"mixing_of({fixed}=...): it does not enter the order, and is fixed here"
            raise TypeError(msg)
    one = {"rank": 0, "world_size": 1}
    whole = dataset.loader(**one, **options)
    resolved = whole.stats()
    columns = list(dict.fromkeys(c for c in (key, files, classes) if c is not None))
    narrow = dataset.select(columns)
    fill = options.pop("fill", None)
    if isinstance(fill, Mapping):
        fill = {name: value for name, value in fill.items() if name in columns}
    options.pop("lists", None)

    def read(**how: Any) -> dict[str, NDArray[Any]]:
        loader = narrow.loader(**one, format="numpy", epoch_end="partial", fill=fill, **how)
        loader.set_epoch(epoch)
        parts: dict[str, list[NDArray[Any]]] = {name: [] for name in columns}
        for batch in loader:
            for name in columns:
                parts[name].append(np.array(batch[name]))  # a copy: the batch's memory is not kept
        return {name: np.concatenate(p) if p else np.empty(0) for name, p in parts.items()}

    if options.get("shuffle", "window") != "none":
        options.update(lanes=resolved["lanes"], window=resolved["window"])
    stored = read(batch_size=65536, shuffle="none")
    delivered = read(**options)[key]
    batch_size = options.get("batch_size", options.get("global_batch_size"))
    if delivered.size < 2:
        msg = f"mixing_of(...): a dataset of {delivered.size} rows has no order to measure"
        raise ValueError(msg)
    return mixing(
        _ordinals(key, stored[key], delivered),
        files=None if files is None else stored[files],
        classes=None if classes is None else stored[classes],
        distance=min(distance, delivered.size - 1) if distance >= 1 else distance,
        batch_size=batch_size,
        seed=options.get("seed", 0),
    )


def _ordinals(key: str, stored: NDArray[Any], delivered: NDArray[Any]) -> NDArray[np.intp]:
    """Where each delivered row is stored."""
    if stored.ndim != 1 or stored.dtype.kind not in "biufUS":
        msg = (
            f"mixing_of(key={key!r}): expected one number or text for each row and no nulls, and "
            f"got {stored.dtype} of shape {stored.shape}"
        )
        raise ValueError(msg)
    sorter = np.argsort(stored, kind="stable")
    ordered = stored[sorter]
    repeats = stored.size - np.unique(stored).size
    if repeats:
        msg = (
            f"mixing_of(key={key!r}): the column does not tell rows apart, {repeats} of "
            f"{stored.size} have a value that an earlier one has; make one that does, e.g. "
            "with_column('key', \"concat_ws(' ', a, b)\")"
        )
        raise ValueError(msg)
    return sorter[np.searchsorted(ordered, delivered)]


def _codes(
    name: str, groups: ArrayLike | None, rows: NDArray[np.integer]
) -> NDArray[np.intp] | None:
    """The group of each row of the order, as a number from 0."""
    if groups is None:
        return None
    of_row = np.asarray(groups)
    if of_row.ndim != 1 or rows.min() < 0 or rows.max() >= of_row.size:
        msg = (
            f"mixing({name}): expected one entry for each row of the dataset, and got shape "
            f"{of_row.shape} for ordinals from {rows.min()} to {rows.max()}"
        )
        raise ValueError(msg)
    chosen = of_row[rows]
    if chosen.dtype == object and any(value is None for value in chosen):
        msg = f"mixing({name}): has nulls; give them a name, e.g. with coalesce({name}, 'none')"
        raise ValueError(msg)
    return np.unique(chosen, return_inverse=True)[1]


def _rank_correlation(rows: NDArray[np.integer]) -> float:
    """Spearman's correlation of the rows and their places; NaN where all rows are the same."""
    _, inverse, counts = np.unique(rows, return_inverse=True, return_counts=True)
    # Rows that are equal share the mean of their ranks.
    ranks = (np.cumsum(counts) - (counts + 1) / 2)[inverse]
    places = np.arange(rows.size) - (rows.size - 1) / 2
    ranks = ranks - ranks.mean()
    scale = np.sqrt((places @ places) * (ranks @ ranks))
    return float(places @ ranks / scale) if scale > 0 else float("nan")


def _expected(groups: NDArray[np.intp]) -> float:
    """How often two rows of a permutation are of the same group."""
    counts = np.bincount(groups).astype(np.float64)
    return float((counts * (counts - 1)).sum() / (groups.size * (groups.size - 1.0)))


def _neighbours(groups: NDArray[np.intp], distance: int) -> NDArray[np.float64]:
    same = [(groups[d:] == groups[:-d]).mean() for d in range(1, distance + 1)]
    expected = _expected(groups)
    return np.array(same) / (expected if expected > 0 else np.nan)


def _batches(groups: NDArray[np.intp], batch_size: int | None) -> float | None:
    """How often two rows of one batch are of the same group, relative; NaN for batches of one."""
    if batch_size is None:
        return None
    batch = np.arange(groups.size) // batch_size
    sizes = np.bincount(batch).astype(np.float64)
    # Counts of each (batch, group) that there is: there may be far more that there are not.
    _, counts = np.unique(batch * (groups.max() + 1) + groups, return_counts=True)
    same = (counts * (counts - 1.0)).sum()
    pairs = (sizes * (sizes - 1)).sum()
    expected = _expected(groups)
    return float(same / pairs / expected) if pairs > 0 and expected > 0 else float("nan")
