"""Arguments of calls, checked where they are given: errors name the call and the argument."""

from __future__ import annotations

import json
import math
import numbers
import operator
import os
from collections.abc import Iterable, Mapping
from typing import Any

from forebay._errors import make

# Characters of a wrong value that an error shows.
_SHOWN = 200


def shown(value: Any) -> str:
    """Show a value in an error, shortened."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def wrong(call: str, argument: str, value: Any, want: str) -> TypeError:
    """Make the error of an argument of the wrong type."""
    return TypeError(f"{call}({argument}={shown(value)}): expected {want}")


def whole(call: str, argument: str, value: Any) -> int:
    """Read a whole number of any library."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise wrong(call, argument, value, "a whole number")


def flag(call: str, argument: str, value: Any) -> bool:
    """Read True or False."""
    if isinstance(value, bool):
        return value
    raise wrong(call, argument, value, "True or False")


def number(call: str, argument: str, value: Any) -> float:
    """Read a number of any library."""
    scalar = isinstance(value, numbers.Real) or getattr(value, "ndim", None) == 0
    if scalar and not isinstance(value, bool):
        return float(value)
    raise wrong(call, argument, value, "a number")


def items(value: Any) -> list[Any] | None:
    """List the items of what is a list to a user: not a text, not a mapping, not a scalar."""
    if isinstance(value, (str, bytes, Mapping)) or getattr(value, "ndim", None) == 0:
        return None
    return list(value) if isinstance(value, Iterable) else None


def names(call: str, argument: str, value: Any) -> list[str]:
    """Read one column name or several."""
    if isinstance(value, str):
        return [value]
    many = items(value)
    if many is None or not all(isinstance(name, str) for name in many):
        raise wrong(call, argument, value, "a column name or a list of them")
    return many


def text(call: str, argument: str, value: Any, want: str) -> str:
    """Read a text."""
    if not isinstance(value, str):
        raise wrong(call, argument, value, want)
    return value


def path(call: str, value: Any) -> str:
    """Read a path or URI."""
    given = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(given, str):
        raise wrong(call, "uri", value, "a path or URI")
    try:
        given.encode()
    except UnicodeEncodeError:
        hint = "rename it, or use a glob that matches it"
        message = f"{call}(): the path {shown(os.fsencode(given))} is not UTF-8"
        raise make("invalid_input", f"{message}\n  hint: {hint}", {"hint": hint}) from None
    return given


def as_json(call: str, value: Any) -> str:
    """Write JSON for the engine, with numbers of NumPy and torch as what they are."""

    def plain(other: Any) -> Any:
        if isinstance(other, os.PathLike):
            return os.fspath(other)
        if getattr(other, "ndim", None) == 0 and hasattr(other, "item"):
            return other.item()
        msg = f"{call}(): {shown(other)} ({type(other).__name__}) is neither a number nor a text"
        raise TypeError(msg)

    written = json.dumps(value, default=plain, ensure_ascii=False)
    try:
        written.encode()
    except UnicodeEncodeError as error:
        found = ascii(written[max(error.start - 20, 0) : error.end + 20])
        raise make("invalid_input", f"{call}(): a text is not UTF-8: {found}", {}) from None
    return written


def options_json(call: str, options: Mapping[str, Any]) -> str:
    """Write arguments as JSON; one that has no JSON form is named."""
    for argument, value in options.items():
        try:
            as_json(call, value)
        except TypeError:
            raise wrong(call, argument, value, "a number, a text or a mapping") from None
    return as_json(call, dict(options))


def absolute(uri: str) -> str:
    """Fix a local path, so that it means the same file after a change of directory."""
    return uri if "://" in uri else os.path.abspath(uri)


def given(**arguments: Any) -> dict[str, Any]:
    return {k: v for k, v in arguments.items() if v is not None}


def plain(value: Any) -> Any:
    """A number as JSON has it; NaN and infinity have no JSON form and are written as words."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value
