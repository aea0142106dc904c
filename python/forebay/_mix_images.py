"""MixUp and CutMix, with the names, parameters and defaults of torchvision's v2 transforms."""

from __future__ import annotations

from typing import Any

from forebay import _arguments


class MixOp:
    """One operator of `Dataset.mix_images`; a description, nothing runs until a batch is made."""

    def __init__(self, word: str, alpha: float, num_classes: int | None) -> None:
        name = type(self).__name__
        self._word = word
        self._parameters: dict[str, Any] = {"alpha": _arguments.number(name, "alpha", alpha)}
        if num_classes is not None:
            classes = _arguments.whole(name, "num_classes", num_classes)
            self._parameters["num_classes"] = classes

    def _as_plan(self) -> dict[str, Any]:
        return {self._word: self._parameters}

    def __repr__(self) -> str:
        parameters = ", ".join(f"{k}={v!r}" for k, v in self._parameters.items())
        return f"{type(self).__name__}({parameters})"


class MixUp(MixOp):
    """Blend each picture of a batch with the one before it.

    A share lambda is drawn from Beta(alpha, alpha) for the whole batch. Pictures become
    ``lambda * own + (1 - lambda) * partner``, and labels likewise.

    Parameters
    ----------
    alpha : float, default 1.0
        Both parameters of the Beta distribution; the smaller, the nearer lambda is to 0 or 1.
    num_classes : int, optional
        How many classes there are. Needed where labels are class indices.
    """

    def __init__(self, *, alpha: float = 1.0, num_classes: int | None = None) -> None:
        super().__init__("mix_up", alpha, num_classes)


class CutMix(MixOp):
    """Paste a rectangle of the picture before it into each picture of a batch.

    A share lambda is drawn from Beta(alpha, alpha) for the whole batch, and a rectangle of the area
    ``1 - lambda`` around a random pixel. Labels are mixed by the area of what lies in the picture.

    Parameters
    ----------
    alpha : float, default 1.0
        Both parameters of the Beta distribution; the smaller, the nearer lambda is to 0 or 1.
    num_classes : int, optional
        How many classes there are. Needed where labels are class indices.
    """

    def __init__(self, *, alpha: float = 1.0, num_classes: int | None = None) -> None:
        super().__init__("cut_mix", alpha, num_classes)
