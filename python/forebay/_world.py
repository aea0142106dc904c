"""Which rank this process is, and of how many."""

from __future__ import annotations

import sys


def discover() -> tuple[int, int] | None:
    """Find rank and world size of this process.

    Ray Train's context comes first, then an initialised ``torch.distributed``. Nothing is imported
    for it: where those libraries are not loaded, this process is not theirs. ``None`` leaves the
    choice to the engine, which looks at ``RANK`` and ``WORLD_SIZE``.
    """
    ray = _ray_train()
    if ray is not None and ray[1] > 1:
        return ray
    # "One worker" is also what the first version of Ray Train answers to processes that are not
    # its own, e.g. to one of torchrun's that calls Ray for something else.
    return _torch_distributed() or ray


def _ray_train() -> tuple[int, int] | None:
    """Ask Ray Train, if this process has a connection to Ray.

    Without one it is no worker, even if some library has imported ``ray.train``: the first version
    of Ray Train would answer "rank 0 of 1" nevertheless.
    """
    ray, train = sys.modules.get("ray"), sys.modules.get("ray.train")
    if ray is None or train is None:
        return None
    try:
        if not ray.is_initialized():
            return None
        context = train.get_context()
        world = context.get_world_size()
        rank = context.get_world_rank()
    except Exception:  # outside of a Ray Train worker every version raises something else
        return None
    return None if world is None or rank is None else (rank, world)


def _torch_distributed() -> tuple[int, int] | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return None
