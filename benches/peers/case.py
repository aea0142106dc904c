"""What is asked of every peer: the words that a peer module and the measuring process share.

A peer module has functions named after the benches it takes part in; each returns a `Loader`.
Making the loader is outside the clock for throughput (a trainer makes it once and runs many epochs)
and inside the clock for start-up. Iterating is always inside.

    NAME                                   what the tables call it
    prepare(threads)                       optional; once per process, before any clock (ray.init)
    images(source, threads, seed)          float32 [n, 3, 224, 224] torch tensors and labels; variants
                                           "uint8" (not normalised) and "eval" (resized and cropped in the middle)
    tabular(source, threads, seed, order)  float32 [n, 7] matrices; order is "file" or "shuffled"
    startup(source, threads, seed)         as images, shuffled; only the first batch is taken
    resume(source, threads, seed, what)    "photographs" or "flights", shuffled; a `Resumable`
    close()                                optional; leave no process behind
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

IMAGE_SIZE = 224
EVAL_RESIZE = 256
IMAGE_BATCH = 64
TABULAR_BATCH = 4_096
SHUFFLE_BUFFER = 65_536
MEAN = [0.485, 0.456, 0.406]
STD = [0.229, 0.224, 0.225]


class Loader(Protocol):
    """One epoch for each iteration; each item has a length in rows."""

    def __iter__(self) -> Iterator[Any]:
        """Deliver one epoch."""
        ...


class Resumable(Protocol):
    """A loader with a position; each item is (batch, *whatever else tells its rows)."""

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Deliver the epoch, from a loaded position where there is one."""
        ...

    def state_dict(self) -> Any:
        """Give the position after the last item that was delivered."""
        ...

    def load_state_dict(self, state: Any) -> None:
        """Let the next iteration go on from a position."""
        ...


@dataclass(frozen=True)
class Entry:
    """One line of a table: a peer's module, the function to call and how to label it."""

    name: str
    module: str
    order: str = "file"
    variant: str = ""
    note: str = ""


# Order here is the order of the first round; later rounds are rotated.
IMAGES = [
    Entry("forebay", "peer_forebay"),
    Entry("torch", "peer_torch", variant="tensor", note="DataLoader, torchvision decode_jpeg and transforms.v2"),
    Entry("torch_pil", "peer_torch", variant="pil", note="DataLoader, Pillow decode and torchvision transforms"),
    Entry("dali", "peer_dali", note="DALI pipeline on CPU"),
    Entry("ray", "peer_ray", note="Ray Data map_batches, torchvision"),
    Entry("daft", "peer_daft", variant="native", note="Daft's own image functions, flip and normalise in torch"),
    Entry("daft_udf", "peer_daft", variant="udf", note="Daft with a torchvision function"),
    Entry("limit", "limit", note="libjpeg-turbo full decode, nothing else"),
    Entry("forebay_uint8", "peer_forebay", variant="uint8", note="pixels, to be normalised on the device"),
    Entry("forebay_eval", "peer_forebay", order="eval", variant="eval", note="Resize(256), CenterCrop(224)"),
    Entry("torch_eval", "peer_torch", order="eval", variant="eval", note="the same, torchvision on tensors"),
    Entry("dali_eval", "peer_dali", order="eval", variant="eval", note="the same, DALI on CPU"),
]

TABULAR = [
    Entry("forebay", "peer_forebay", order="shuffled"),
    Entry("forebay_file_order", "peer_forebay", order="file"),
    Entry("forebay_full", "peer_forebay", order="shuffled", variant="full", note="all rows permuted, first epoch"),
    Entry("forebay_full_later", "peer_forebay", order="shuffled", variant="full_later", note="the same, a later epoch"),
    Entry("ray", "peer_ray", order="shuffled", note="iter_torch_batches, local_shuffle_buffer_size 65,536"),
    Entry("torch", "peer_torch", order="shuffled", note="DataLoader, whole set in memory, batched fetch, load counted"),
    Entry(
        "torch_buffer", "peer_torch", order="shuffled", variant="buffer", note="DataLoader, 65,536-row buffer a worker"
    ),
    Entry(
        "pyarrow_scan", "peer_pyarrow", variant="scan", note="dataset scan alone: no conversion, no batches of 4,096"
    ),
    Entry("pyarrow", "peer_pyarrow", note="dataset scan to dense batches"),
    Entry("polars_scan", "peer_polars", variant="scan", note="collect_batches alone: no conversion"),
    Entry("polars", "peer_polars", note="collect_batches to dense batches"),
    Entry("torch", "peer_torch", order="file", note="DataLoader, IterableDataset over pyarrow"),
    Entry("ray", "peer_ray", order="file", note="iter_torch_batches, no shuffle"),
    Entry("daft", "peer_daft", order="file", note="to_arrow_iter to dense batches"),
]

STARTUP = [
    Entry("forebay", "peer_forebay"),
    Entry("torch", "peer_torch", variant="map", note="map-style, whole file read, full permutation"),
    Entry("torch_stream", "peer_torch", variant="stream", note="iterable, row groups permuted, rows permuted within"),
    Entry("dali", "peer_dali", note="pipeline built and run, rows permuted within permuted row groups"),
    Entry("ray", "peer_ray", note="after ray.init; Pillow and NumPy; local shuffle buffer of 128 rows"),
    Entry("ray_small_blocks", "peer_ray", variant="small", note="the same with blocks of 32 MiB, 40 read tasks"),
    Entry("daft_udf", "peer_daft", variant="udf", note="not shuffled"),
]

RESUME = [
    Entry("forebay", "peer_forebay"),
    Entry("torch_stateful", "peer_torchdata", variant="stream", note="iterable, state_dict in the dataset"),
    Entry("torch_stateful_map", "peer_torchdata", variant="map", note="map-style, whole set read, full permutation"),
    Entry("mosaicml_streaming", "peer_mosaicml", note="MDS made from the same rows, its defaults"),
]

# What takes part with all ten million flights: MosaicML's writer and its way to 90% take a quarter of an hour.
RESUME_LARGE = [entry for entry in RESUME if entry.module != "peer_mosaicml"]

BENCHES = {"images": IMAGES, "tabular": TABULAR, "startup": STARTUP, "resume": RESUME}
