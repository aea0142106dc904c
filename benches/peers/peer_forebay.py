"""Forebay itself, through its Python face, with the options that the peers' jobs name and no others."""

from __future__ import annotations

import torch  # noqa: F401 - the tensors are torch's: an import, so outside every clock and gauge

import forebay as fb
from case import EVAL_RESIZE, IMAGE_BATCH, IMAGE_SIZE, MEAN, STD, TABULAR_BATCH
from data import COLUMNS, Source


def load(dataset: fb.Dataset, socket: str | None = None, **options):
    """Make a loader of this process, or of the sidecar at a socket."""
    return fb.connect(socket).loader(dataset, **options) if socket else dataset.loader(**options)


class _Column:
    """Deliver one tensor of each batch."""

    def __init__(self, loader, column: str) -> None:
        self.loader, self.column = loader, column

    def __iter__(self):
        for batch in self.loader:
            yield batch[self.column]


def images(source: Source, threads: int, seed: int, variant: str = "", **options):
    """Shuffled, all rows delivered, labels beside the images."""
    evaluation = variant == "eval"
    pixels = variant == "uint8"
    training = [fb.RandomResizedCrop(IMAGE_SIZE), fb.RandomHorizontalFlip()]
    dataset = fb.read_parquet(source.path, columns=["image", "label"]).map_image(
        "image",
        [
            *([fb.Resize(EVAL_RESIZE), fb.CenterCrop(IMAGE_SIZE)] if evaluation else training),
            *([] if pixels else [fb.Normalize(MEAN, STD)]),
        ],
        mode="RGB",
        dtype="uint8" if pixels else "float32",
        layout="CHW",
    )
    loader = load(
        dataset,
        batch_size=IMAGE_BATCH,
        shuffle="window",
        seed=seed,
        num_threads=threads,
        epoch_end="partial",
        **options,
    )
    return _Column(loader, "image")


startup = images


def tabular(source: Source, threads: int, seed: int, order: str, variant: str = "", **options):
    """One dense float32 matrix a batch, nulls as NaN; with a variant, of a permutation of all rows."""
    dataset = fb.read_parquet(source.path, columns=COLUMNS).stack(COLUMNS, into="x", dtype="float32")
    loader = load(
        dataset,
        batch_size=TABULAR_BATCH,
        shuffle="none" if order == "file" else "full" if variant else "window",
        seed=seed,
        fill=float("nan"),
        epoch_end="partial",
        num_threads=threads,
        **options,
    )
    if variant == "full_later":
        for _ in loader:
            pass
    return _Column(loader, "x")


class _Resumable:
    """A loader whose items are tuples of the named columns."""

    def __init__(self, loader, columns: list[str]) -> None:
        self.loader, self.columns = loader, columns
        self.state_dict, self.load_state_dict = loader.state_dict, loader.load_state_dict

    def __iter__(self):
        for batch in self.loader:
            yield tuple(batch[c] for c in self.columns)


def resume(source: Source, threads: int, seed: int, what: str):
    """The loaders of `images` and `tabular`; endpoint and keys of a bucket come from the environment."""
    if what == "photographs":
        return _Resumable(images(source, threads, seed).loader, ["image", "label"])
    return _Resumable(tabular(source, threads, seed, "shuffled").loader, ["x"])
