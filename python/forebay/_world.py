"""Which rank this process is, and of how many."""

from __future__ import annotations

import sys


def discover() -> tuple[int, int] | None:
    """Find rank and world size of this process.

    Ray Train's context comes first, then an initialised ``torch.distributed``. Nothing is imported
    for it: where those libraries are not loaded, this process is not theirs. ``None`` leaves the
    choice to the engine, which looks at ``RANK`` and ``WORLD_SIZE``.
    """
    train = sys.modules.get("ray.train")
    if train is not None:
        try:
            context = train.get_context()
            world = context.get_world_size()
            rank = context.get_world_rank()
        except Exception:  # outside of a Ray Train worker every version raises something else
            world = rank = None
        if world is not None and rank is not None:
            return rank, world
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return None
