"""The limit for photographs: libjpeg-turbo decodes the same files in full, and nothing else happens.

libjpeg-turbo 3.1 as simplejpeg's wheel carries it, accurate DCT and fancy upsampling as all peers use,
RGB out, into one buffer a thread that is reused, from bytes that are already in memory. simplejpeg gives
up the interpreter lock while it decodes, so threads are real ones.

Kept apart from the other peers, so that a program on another binding of the same library may take its place.
"""

from __future__ import annotations

import queue
import threading

import numpy as np
import pyarrow.parquet as pq
import simplejpeg

from data import Source

CHUNK = 16


class _Decoded:
    """What one step delivers: its length counts the files."""

    def __init__(self, files: int) -> None:
        self.files = files

    def __len__(self) -> int:
        return self.files


class _Limit:
    def __init__(self, source: Source, threads: int) -> None:
        column = pq.read_table(source.path, columns=["image"])["image"]
        self.files = [np.frombuffer(value.as_buffer(), np.uint8) for chunk in column.chunks for value in chunk]
        shapes = (simplejpeg.decode_jpeg_header(f)[:2] for f in self.files)
        largest = max(h * w for h, w in shapes) * 3
        self.buffers = [np.empty(largest, np.uint8) for _ in range(threads)]

    def __iter__(self):
        todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        for start in range(0, len(self.files), CHUNK):
            todo.put(start)
        done = []

        def work(buffer: np.ndarray) -> None:
            while True:
                try:
                    start = todo.get_nowait()
                except queue.Empty:
                    return
                for data in self.files[start : start + CHUNK]:
                    simplejpeg.decode_jpeg(data, "RGB", fastdct=False, fastupsample=False, buffer=buffer)
                done.append(len(self.files[start : start + CHUNK]))

        threads = [threading.Thread(target=work, args=(b,)) for b in self.buffers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        yield _Decoded(sum(done))


def images(source: Source, threads: int, seed: int, variant: str = ""):
    """All files' bytes are read here, before the clock."""
    return _Limit(source, threads)
