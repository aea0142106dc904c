"""DALI on CPU: the classification pipeline of its own examples, fed from Parquet.

The bytes come through an external source that reads row groups with pyarrow. Decoding is fused with the
random crop (DALI decodes only the region), then resize, flip and normalise in its thread pool; for evaluation
the whole picture is decoded and resized, and the crop is fused with the normalisation.
"""

from __future__ import annotations

import numpy as np
import torch
from nvidia.dali import fn, pipeline_def, types

from batches import permuted_images
from case import EVAL_RESIZE, IMAGE_BATCH, IMAGE_SIZE, MEAN, STD
from data import Source


# The dynamic executor hands its output buffers over for good, as DALI's own torch iterator uses it: a batch
# is the trainer's own without a copy.
@pipeline_def(exec_dynamic=True)
def _pipeline(feed, evaluation):
    jpegs, labels = fn.external_source(
        source=feed, num_outputs=2, batch=False, cycle="raise", dtype=[types.UINT8, types.INT64]
    )
    if evaluation:
        pictures = fn.decoders.image(jpegs, device="cpu", output_type=types.RGB)
        pictures = fn.resize(pictures, resize_shorter=EVAL_RESIZE, interp_type=types.INTERP_LINEAR)
    else:
        pictures = fn.decoders.image_random_crop(jpegs, device="cpu", output_type=types.RGB)
        pictures = fn.resize(pictures, size=[IMAGE_SIZE, IMAGE_SIZE], interp_type=types.INTERP_LINEAR)
    pictures = fn.crop_mirror_normalize(
        pictures,
        crop=[IMAGE_SIZE, IMAGE_SIZE],
        mirror=0 if evaluation else fn.random.coin_flip(),
        dtype=types.FLOAT,
        output_layout="CHW",
        mean=[255 * m for m in MEAN],
        std=[255 * s for s in STD],
    )
    return pictures, labels


class _Feed:
    """One sample a call; StopIteration at the epoch's end, as DALI's external source asks."""

    def __init__(self, path: str, seed: int) -> None:
        self.path, self.seed, self.rows = path, seed, iter(())

    def __iter__(self):
        self.rows = permuted_images(self.path, self.seed)
        return self

    def __next__(self):
        data, label = next(self.rows)
        return np.frombuffer(data, np.uint8), np.array([label], np.int64)


class _Epochs:
    """A built pipeline; each iteration is an epoch of torch tensors."""

    def __init__(self, source: Source, threads: int, seed: int, evaluation: bool) -> None:
        self.left = source.rows
        self.pipe = _pipeline(
            _Feed(source.path, seed),
            evaluation,
            batch_size=IMAGE_BATCH,
            num_threads=threads,
            device_id=None,
            seed=seed,
            prefetch_queue_depth=2,
        )
        self.pipe.build()

    def __iter__(self):
        # DALI drops a last partial batch of an external source, so the tail (32 of 4,000) is not counted.
        while True:
            try:
                pictures, _labels = self.pipe.run()
            except StopIteration:
                self.pipe.reset()
                return
            yield torch.from_dlpack(pictures.as_tensor())


def images(source: Source, threads: int, seed: int, variant: str = ""):
    """The pipeline is built here, once."""
    return _Epochs(source, threads, seed, evaluation=variant == "eval")


startup = images
