"""A second implementation of the generator, and of what `mix_images` draws from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

W32 = (1 << 32) - 1
W64 = (1 << 64) - 1


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox 4x32 with 10 rounds (Salmon et al., 2011)."""
    for _ in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [b >> 32 ^ counter[1] ^ key[0], b & W32, a >> 32 ^ counter[3] ^ key[1], a & W32]
        key = [(key[0] + 0x9E3779B9) & W32, (key[1] + 0xBB67AE85) & W32]
    return counter


def mixed_key(words: Sequence[int]) -> int:
    h = 0x6A09E667F3BCC908
    for word in words:
        z = ((h ^ word) + 0x9E3779B97F4A7C15) & W64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & W64
        z = (z ^ z >> 27) * 0x94D049BB133111EB & W64
        h = z ^ z >> 31
    return h


class Draws:
    """Draws of an operator for an item of an epoch: a row, or the place of a batch."""

    def __init__(self, seed: int, epoch: int, item: int, operator: int) -> None:
        key = mixed_key([seed, epoch, operator])
        self.key = [key & W32, key >> 32]
        self.counter = [0, 0, item & W32, item >> 32]
        self.left: list[int] = []

    def word(self) -> int:
        if not self.left:
            self.left = philox(self.counter, self.key)
            self.counter = [self.counter[0] + 1, *self.counter[1:]]
        return self.left.pop(0)

    def uniform(self) -> float:
        low = self.word()
        return ((self.word() << 32 | low) >> 11) / (1 << 53)

    def below(self, n: int) -> int:
        while True:
            product = self.word() * n
            if product & W32 >= (1 << 32) % n:
                return product >> 32


@dataclass
class Mixed:
    """What is drawn for a batch: the number of the operator, lambda, and for CutMix the box."""

    op: int
    lam: float
    box: tuple[int, int, int, int] | None = None


def mixing(
    draws: Draws,
    ops: Sequence[tuple[str, float]],
    size: tuple[int, int],
    p: Sequence[float] | None = None,
) -> Mixed:
    """Draw for a batch; `ops` are names with their alpha, `size` is height and width."""
    op = 0
    if len(ops) > 1 and p is None:
        op = draws.below(len(ops))
    elif len(ops) > 1:
        left = draws.uniform() * sum(p)
        while left >= p[op]:
            left -= p[op]
            op += 1
    name, alpha = ops[op]
    u, v = 1 - draws.uniform(), draws.uniform()
    cos = math.cos(2 * math.pi * v)
    try:
        inverse = 1 / math.expm1(-math.log(u) / alpha)
    except OverflowError:
        inverse = 0.0
    lam = 0.5 + 0.5 * cos / math.sqrt(cos * cos + inverse)
    if name == "MixUp":
        return Mixed(op, lam)
    height, width = size
    x, y = draws.below(width), draws.below(height)
    half = 0.5 * math.sqrt(1 - lam)
    w, h = int(half * width), int(half * height)
    box = (max(x - w, 0), max(y - h, 0), min(x + w, width), min(y + h, height))
    area = (box[2] - box[0]) * (box[3] - box[1])
    return Mixed(op, 1 - area / (width * height), box)
