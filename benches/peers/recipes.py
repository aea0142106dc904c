"""The image job in two spellings that several peers share: torchvision, and Pillow with NumPy.

`tensor` is the fastest that torchvision offers: libjpeg-turbo decode and transforms.v2 on uint8 tensors.
`pil` is the textbook one. `numpy_chain` needs neither torch nor torchvision, whose import costs a fresh
worker process more than its first batch: Ray's start-up figure is measured with it.
"""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable
from typing import Any

from case import EVAL_RESIZE, IMAGE_SIZE, MEAN, STD


def tensor(evaluation: bool = False) -> Callable[[Any], Any]:
    """JPEG bytes to a float32 CHW tensor, all in torchvision's C++."""
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms import v2

    training = [v2.RandomResizedCrop(IMAGE_SIZE, antialias=True), v2.RandomHorizontalFlip()]
    chain = v2.Compose(
        [
            *([v2.Resize(EVAL_RESIZE, antialias=True), v2.CenterCrop(IMAGE_SIZE)] if evaluation else training),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD, inplace=True),
        ]
    )

    def apply(data: Any) -> Any:
        # A bytearray: torch warns about read-only memory, and copying 110 kB costs nothing beside the decode.
        return chain(decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB))

    return apply


def pil() -> Callable[[Any], Any]:
    """JPEG bytes to a float32 CHW tensor through Pillow."""
    from PIL import Image
    from torchvision import transforms

    chain = transforms.Compose(
        [
            transforms.RandomResizedCrop(IMAGE_SIZE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )

    def apply(data: Any) -> Any:
        return chain(Image.open(io.BytesIO(data)).convert("RGB"))

    return apply


def numpy_chain() -> Callable[[Any], Any]:
    """JPEG bytes to a float32 CHW array through Pillow and NumPy."""
    import numpy as np
    from PIL import Image

    scale = (1 / (255 * np.array(STD, np.float32))).reshape(3, 1, 1)
    shift = (np.array(MEAN, np.float32) / np.array(STD, np.float32)).reshape(3, 1, 1)

    def apply(data: Any) -> Any:
        image = Image.open(io.BytesIO(data)).convert("RGB")
        left, top, width, height = crop_box(image.width, image.height)
        image = image.resize(
            (IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height)
        )
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1), np.float32)
        pixels *= scale
        pixels -= shift
        return pixels

    return apply


def crop_box(width: int, height: int) -> tuple[int, int, int, int]:
    """Draw left, top, width and height as RandomResizedCrop does: area 8% to 100%, ratio 3/4 to 4/3."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side
