"""Lists of different lengths."""

from __future__ import annotations

from typing import Any, NamedTuple


class Ragged(NamedTuple):
    """A column of lists of different lengths.

    Sample ``i`` is ``values[offsets[i]:offsets[i + 1]]``; `torch.nested` and packed attention
    kernels take the two tensors as they are.

    Attributes
    ----------
    values : tensor of shape (total,)
        All elements, one list after the other.
    offsets : int64 tensor of shape (batch + 1,)
        Where each list starts, and the end.
    """

    values: Any
    offsets: Any
