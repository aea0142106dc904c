"""Exceptions of Forebay.

Each is a `ForebayError` and also the built-in exception that a Python user would expect, so that
``except FileNotFoundError`` and ``except ForebayError`` both work.
"""

from __future__ import annotations

from typing import Any


class ForebayError(Exception):
    """Any error of the engine.

    The text has the whole story: what happened, where, the cause, and a hint. The parts are
    attributes.

    Attributes
    ----------
    kind : str
        A stable lower-case name of the kind, e.g. ``"corrupt"``.
    file : str or None
        The file, as you would write it.
    row_group : int or None
        Row group within the file, from 0.
    row : int or None
        Row within the file, from 0.
    column : str or None
        Column name.
    place : str or None
        The place in the plan or the argument, e.g. ``steps[1].filter``.
    hint : str or None
        What to do.
    """

    kind: str = "internal"
    file: str | None = None
    row_group: int | None = None
    row: int | None = None
    column: str | None = None
    place: str | None = None
    hint: str | None = None


class InvalidInputError(ForebayError, ValueError):
    """The request is wrong: an unknown column, a bad value, a SQL syntax error."""


class NotFoundError(ForebayError, FileNotFoundError):
    """A file, folder or bucket that was named does not exist."""


class PermissionDeniedError(ForebayError, PermissionError):
    """Credentials or file permissions do not allow the access."""


class AlreadyExistsError(ForebayError, FileExistsError):
    """The target already holds committed output."""


class CorruptDataError(ForebayError, ValueError):
    """The bytes are not what their format says."""


class SchemaError(ForebayError, TypeError):
    """Schemas or types do not fit each other."""


class DataError(ForebayError, ValueError):
    """A value in the data does not allow the operation: an overflow, a failed cast."""


class UnsupportedError(ForebayError, NotImplementedError):
    """The input is valid, and Forebay does not handle it."""


class StorageError(ForebayError, OSError):
    """The disk, the network or the server failed."""


class ResourceError(ForebayError, MemoryError):
    """Memory, disk space or descriptors ran out, or a limit was reached."""


class ChangedError(ForebayError, OSError):
    """A file changed since it was listed."""


class CancelledError(ForebayError, RuntimeError):
    """The work was stopped by its owner."""


class InternalError(ForebayError, RuntimeError):
    """A defect in Forebay."""


_CLASSES: dict[str, type[ForebayError]] = {
    "invalid_input": InvalidInputError,
    "not_found": NotFoundError,
    "permission_denied": PermissionDeniedError,
    "already_exists": AlreadyExistsError,
    "corrupt": CorruptDataError,
    "schema": SchemaError,
    "value": DataError,
    "unsupported": UnsupportedError,
    "io": StorageError,
    "resource": ResourceError,
    "changed": ChangedError,
    "cancelled": CancelledError,
    "internal": InternalError,
}


def make(kind: str, text: str, parts: dict[str, Any]) -> ForebayError:
    """Make the exception for an error of the engine; called from native code."""
    error = _CLASSES.get(kind, InternalError)(text)
    error.kind = kind
    for name, value in parts.items():
        setattr(error, name, value)
    return error
