"""What a loader is asked for, as the engine reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from forebay import _arguments
from forebay._world import discover

Uri = str | os.PathLike[str]


def loader_options(
    *,
    rank: int | None,
    world_size: int | None,
    shuffle: str,
    fill: float | Mapping[str, float] | None,
    lists: str | Mapping[str, str] | None,
    max_bad_share: float | None,
    bad_rows_to: Uri | None,
    **others: Any,
) -> tuple[str, bool]:
    """Give the arguments of `Dataset.loader` as JSON, and whether the world is still to be found.

    Where rank and world size were not given, a launcher may start after the loader was made.
    """
    discovers = rank is None and world_size is None
    if discovers:
        rank, world_size = discover() or (None, None)
    if isinstance(fill, Mapping):
        filled: Any = {name: _arguments.plain(value) for name, value in fill.items()}
    else:
        filled = _arguments.plain(fill)
    options = _arguments.given(
        **others,
        rank=rank,
        world_size=world_size,
        fill=filled,
        lists=dict(lists) if isinstance(lists, Mapping) else lists,
        max_bad_share=_arguments.plain(max_bad_share),
        bad_rows_to=listed("loader", bad_rows_to),
    )
    # Not among the optional ones: None is no word for "no shuffle", and the engine says so.
    options["shuffle"] = shuffle
    return _arguments.options_json("loader", options), discovers


def listed(call: str, uri: Uri | None) -> str | None:
    """Read where bad rows are listed."""
    if uri is None:
        return None
    if not isinstance(uri, (str, os.PathLike)):
        raise _arguments.wrong(call, "bad_rows_to", uri, "the path of a local file")
    path = _arguments.path(call, uri)
    return _arguments.absolute(path) if path.strip() else path
