"""Ray Data on one node of two CPUs: read_parquet, map_batches, iter_torch_batches.

Images run the same torchvision function as the torch peer (its fastest spelling); for start-up, Pillow and
NumPy, so that no worker has to import torch first. This module does not import torch at its top for the
same reason. Tabular goes straight from read_parquet to iter_torch_batches. The cluster is started before
the clock and stopped at the end; what starting it takes is reported beside the start-up figure.
"""

from __future__ import annotations

import logging
import os

import numpy as np
import ray

from case import IMAGE_BATCH, SHUFFLE_BUFFER, TABULAR_BATCH
from data import COLUMNS, Source

# The raylet does not wait for its workers, so their CPU time is lost with them unless watched.
LOSES_CHILDREN = True


def prepare(threads: int) -> None:
    """Start a local cluster of `threads` CPUs; its files go to the measurement's own folder."""
    ray.init(
        num_cpus=threads,
        num_gpus=0,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
        object_store_memory=2 << 30,
        _temp_dir=os.getcwd(),
        _node_ip_address="127.0.0.1",
    )

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False


def close() -> None:
    """Stop the cluster; its folder goes with the measurement."""
    ray.shutdown()


_chain = None


def torchvision_batch(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The torchvision chain over a batch, made once in each worker process."""
    global _chain
    import torch

    import recipes

    if _chain is None:
        torch.set_num_threads(1)
        _chain = recipes.tensor()
    return {"image": torch.stack([_chain(b) for b in batch["image"]]).numpy(), "label": batch["label"]}


def pillow_batch(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same through Pillow and NumPy, for a worker that has not imported torch."""
    global _chain
    import recipes

    _chain = _chain or recipes.numpy_chain()
    return {"image": np.stack([_chain(b) for b in batch["image"]]), "label": batch["label"]}


def _photographs(source: Source, work, shuffle: int | None, seed: int, blocks: int | None = None):
    dataset = ray.data.read_parquet(source.path, columns=["image", "label"], override_num_blocks=blocks)
    dataset = dataset.map_batches(work, batch_size=IMAGE_BATCH)

    class Epochs:
        def __iter__(self):
            options = {} if shuffle is None else {"local_shuffle_buffer_size": shuffle, "local_shuffle_seed": seed}
            for batch in dataset.iter_torch_batches(batch_size=IMAGE_BATCH, **options):
                yield batch["image"]

    return Epochs()


def images(source: Source, threads: int, seed: int, variant: str = ""):
    """In block order: Ray is spared a shuffle of decoded images."""
    return _photographs(source, torchvision_batch, None, seed)


def startup(source: Source, threads: int, seed: int, variant: str = ""):
    """Shuffled by the smallest buffer that mixes anything: two batches.

    A block of Ray's default size holds 213 such images, and the first is awaited whole; `small` asks for
    blocks that a batch fits in twice, which is what a user who minds the start can set.
    """
    if variant == "small":
        ray.data.DataContext.get_current().target_max_block_size = 32 << 20
        return _photographs(source, pillow_batch, 2 * IMAGE_BATCH, seed, blocks=40)
    return _photographs(source, pillow_batch, 2 * IMAGE_BATCH, seed)


def tabular(source: Source, threads: int, seed: int, order: str, variant: str = ""):
    """Seven float32 columns stacked to one matrix, the last step in the consumer as Ray's users do it."""
    dataset = ray.data.read_parquet(source.path, columns=COLUMNS)

    class Epochs:
        def __iter__(self):
            import torch

            options = {}
            if order == "shuffled":
                options = {"local_shuffle_buffer_size": SHUFFLE_BUFFER, "local_shuffle_seed": seed}
            for batch in dataset.iter_torch_batches(batch_size=TABULAR_BATCH, dtypes=torch.float32, **options):
                yield torch.stack([batch[c] for c in COLUMNS], dim=1)

    return Epochs()
