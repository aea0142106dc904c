"""The C interface: the example as a C program, and the library called as another language would."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import support
from sidecars import Process
from support import ROOT, finish, ids, numbered, write

import forebay as fb

CRATE = ROOT / "crates" / "forebay-c"
HEADER = CRATE / "include" / "forebay.h"
LIBRARIES = support.BINARY.parent
FLIGHTS = ROOT / "examples" / "data" / "flights"
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"]

OK, END, TIMEOUT, ERROR = range(4)
DENSE, EACH, RAGGED, ARROW = range(4)


def plan(path: str | Path, columns: list[str] | None = None, **more: Any) -> str:
    source = {"uri": str(path), **({"columns": columns} if columns else {})}
    return json.dumps({"source": {"parquet": source}, **more})


# The example, as a user builds it.


@pytest.fixture(scope="module", params=["shared", "static"])
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("c") / "epoch"
    if request.param == "shared":
        library = ["-L", str(LIBRARIES), "-lforebay", f"-Wl,-rpath,{LIBRARIES}"]
    else:
        library = [str(LIBRARIES / "libforebay.a"), "-lm", "-lpthread", "-ldl"]
    source = CRATE / "examples" / "epoch.c"
    command = ["cc", *STRICT, "-O1", "-I", HEADER.parent, source, *library, "-o", program]
    subprocess.run(command, check=True)
    return program


def run(example: Path, *arguments: str | Path) -> tuple[int, str, str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return finish(subprocess.Popen([example, *arguments], text=True, **pipes))


@pytest.mark.parametrize("column", ["distance", "dep_delay"])
def test_the_example_sums_a_column(example: Path, sidecar: Process, column: str) -> None:
    options = {"batch_size": 256, "epoch_end": "partial", "fill": 0}
    arguments = [plan(FLIGHTS, ["distance", "dep_delay"]), json.dumps(options), column]
    status, out, err = run(example, sidecar.socket, *arguments)
    assert (status, err) == (0, "")
    rows, total = re.fullmatch(r"(\d+) rows, sum (\S+)\n", out).groups()
    expected = pq.read_table(FLIGHTS, columns=[column])[column]
    assert (int(rows), float(total)) == (len(expected), pc.sum(expected).as_py())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (['{"source":', "{}", "x"], "plan:1:10: not valid JSON"),
        (
            [plan(FLIGHTS, steps=[{"fliter": "x"}]), "{}", "x"],
            'steps[0]: unknown step "fliter"\n  hint: did you mean "filter"?',
        ),
        ([plan(FLIGHTS), "{}", "x"], "neither batch_size nor global_batch_size is given"),
        ([plan("/nowhere"), '{"batch_size": 9}', "x"], "/nowhere"),
        (
            [plan(FLIGHTS, ["distance"]), '{"batch_size": 9}', "distanc"],
            'there is no column "distanc" in the batch\n  hint: did you mean "distance"?',
        ),
        (
            [plan(FLIGHTS, ["distance", "carrier"]), '{"batch_size": 9}', "carrier"],
            "carrier does not hold one number a row",
        ),
    ],
)
def test_the_example_says_what_is_wrong(
    example: Path, sidecar: Process, arguments: list[str], message: str
) -> None:
    status, out, err = run(example, sidecar.socket, *arguments)
    assert (status, out) == (1, "")
    assert err.startswith("error: ")
    assert message in err


def test_the_example_without_a_sidecar(example: Path, tmp_path: Path) -> None:
    status, _, err = run(example, tmp_path / "none", "{}", "{}", "x")
    assert status == 1
    assert f"there is no sidecar at {tmp_path / 'none'}" in err
    assert run(example)[0] == 2


# The header.


@pytest.mark.parametrize("language", ["c", "c++"])
def test_the_header_stands_alone(language: str) -> None:
    compiler = "cc" if language == "c" else "c++"
    if not shutil.which(compiler):
        pytest.skip(f"there is no {compiler}")
    strict = STRICT if language == "c" else STRICT[1:-1]
    subprocess.run([compiler, "-x", language, "-fsyntax-only", *strict, HEADER], check=True)


def test_the_library_exports_what_the_header_says() -> None:
    code = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    declared = set(re.findall(r"(forebay_\w+)\(", code))
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", LIBRARIES / "libforebay.so"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    exported = set(re.findall(r" T (\S+)", listing))
    assert len(declared) > 15
    assert exported == declared


# The library, from a language that only knows the header.


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("ndim", ctypes.c_int32),
        ("shape", POINTER(c_int64)),
        ("nbytes", c_uint64),
    ]

    def numpy(self) -> np.ndarray:
        """The values, copied: the memory is the batch's."""
        letter = {0: "i", 1: "u", 2: "f", 6: "b"}[self.code]
        bytes_ = ctypes.string_at(self.data, self.nbytes)
        return np.frombuffer(bytes_, f"{letter}{self.bits // 8}").reshape(self.shape[: self.ndim])


class Column(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("kind", c_int),
        ("count", c_size_t),
        ("tensors", POINTER(Tensor)),
    ]


class Facts(ctypes.Structure):
    _fields_ = [(name, c_uint64) for name in ("steps", "rows", "rank", "world_size")]


def wait_for_ever(library: Library, epoch: c_void_p, end: float) -> None:
    while time.monotonic() < end:
        library.drop("batch_release", library.next(epoch, 0)[1])


class Failed(Exception):
    def __init__(self, kind: str, message: str, hint: str | None) -> None:
        super().__init__(message)
        self.kind, self.hint = kind, hint


class Library:
    def __init__(self) -> None:
        self.c = ctypes.CDLL(str(LIBRARIES / "libforebay.so"))
        texts = (getattr(self.c, f"forebay_error_{part}") for part in ("kind", "message", "hint"))
        self._texts = tuple(texts)
        for text in self._texts:
            text.restype = c_char_p

    def __call__(self, name: str, *arguments: Any) -> int:
        """Call a function that can fail, with its error at the end."""
        error = c_void_p()
        status = self.c[f"forebay_{name}"](*arguments, byref(error))
        assert bool(error) == (status == ERROR)
        if status != ERROR:
            return status
        parts = [text(error) for text in self._texts]
        self.drop("error_free", error)
        raise Failed(*(part and part.decode() for part in parts))

    def drop(self, name: str, handle: c_void_p) -> None:
        self.c[f"forebay_{name}"](handle)

    def open(
        self,
        socket: Path,
        plan: str,
        wait: float = 60.0,
        snapshot: str | None = None,
        **options: Any,
    ) -> c_void_p:
        loader, texts = c_void_p(), (str(socket), plan, json.dumps(options))
        texts = [text.encode() for text in texts]
        snapshot = snapshot and snapshot.encode()
        self("loader_open", *texts, snapshot, c_double(wait), byref(loader))
        return loader

    def start(self, loader: c_void_p, first: int = 0, stride: int = 1) -> c_void_p:
        epoch = c_void_p()
        self("epoch_start", loader, c_uint64(first), c_uint64(stride), byref(epoch))
        return epoch

    def next(self, epoch: c_void_p, timeout: int = -1) -> tuple[int, c_void_p]:
        batch = c_void_p()
        status = self("epoch_next", epoch, c_int64(timeout), byref(batch))
        assert bool(batch) == (status == OK)
        return status, batch

    def batches(self, epoch: c_void_p) -> Iterator[c_void_p]:
        while True:
            status, batch = self.next(epoch)
            if status == END:
                return
            yield batch
            self.drop("batch_release", batch)

    def column(self, batch: c_void_p, name: str) -> Column:
        index, column = c_size_t(), Column()
        self("batch_find", batch, name.encode(), byref(index))
        self("batch_column", batch, index, byref(column))
        assert column.name.decode() == name
        return column

    def values(self, batch: c_void_p, name: str) -> list[np.ndarray]:
        column = self.column(batch, name)
        return [tensor.numpy() for tensor in column.tensors[: column.count]]

    def ids(self, epoch: c_void_p) -> list[int]:
        return [int(i) for b in self.batches(epoch) for i in self.values(b, "id")[0]]

    def state(self, loader: c_void_p) -> dict[str, Any]:
        text = c_void_p()
        self("loader_state", loader, byref(text))
        try:
            return json.loads(ctypes.string_at(text))
        finally:
            self.drop("string_free", text)


@pytest.fixture(scope="module")
def library() -> Library:
    return Library()


@pytest.fixture
def rows(tmp_path: Path) -> str:
    return numbered(tmp_path / "data" / "a.parquet", 1_000)


def test_an_epoch_is_that_of_python(library: Library, sidecar: Process, rows: str) -> None:
    here = fb.read_parquet(rows).loader(64, seed=7, format="numpy")
    loader = library.open(sidecar.socket, plan(rows), batch_size=64, seed=7)
    facts = Facts()
    library("loader_facts", loader, byref(facts))
    assert (facts.steps, facts.rows, facts.rank, facts.world_size) == (15, 1_000, 0, 1)
    for _ in range(2):
        epoch = library.start(loader)
        assert library.ids(epoch) == ids(here)
        assert library.next(epoch)[0] == END
        library.drop("epoch_close", epoch)
        assert library.state(loader) == here.state_dict()
    library("loader_set_epoch", loader, c_uint64(9))
    here.set_epoch(9)
    shares = [library.start(loader, worker, 2) for worker in range(2)]
    whole = ids(here)
    steps = [whole[i : i + 64] for i in range(0, len(whole), 64)]
    for worker, share in enumerate(shares):
        assert library.ids(share) == [row for step in steps[worker::2] for row in step]
        library.drop("epoch_close", share)
    library.drop("loader_close", loader)


def test_a_position_is_taken_up(library: Library, sidecar: Process, rows: str) -> None:
    options = {"batch_size": 64, "seed": 7}
    loader = library.open(sidecar.socket, plan(rows), **options)
    epoch = library.start(loader)
    for _ in range(3):
        library.drop("batch_release", library.next(epoch)[1])
    state = library.state(loader)
    rest = library.ids(epoch)
    # In any order: an epoch keeps what it needs of its loader.
    library.drop("loader_close", loader)
    library.drop("epoch_close", epoch)
    loader = library.open(sidecar.socket, plan(rows), **options)
    library("loader_load_state", loader, json.dumps(state).encode())
    epoch = library.start(loader)
    assert library.ids(epoch) == rest
    for wrong, message in [("{", "not valid JSON"), (json.dumps({**state, "seed": 8}), "seed")]:
        with pytest.raises(Failed, match=message) as caught:
            library("loader_load_state", loader, wrong.encode())
        assert caught.value.kind == "invalid_input"
    library.drop("epoch_close", epoch)
    library.drop("loader_close", loader)


def test_every_kind_of_column(library: Library, sidecar: Process, tmp_path: Path) -> None:
    texts = [f"text {i}" if i % 7 else None for i in range(300)]
    lists = [list(range(i % 5)) for i in range(300)]
    pairs = pa.FixedSizeListArray.from_arrays(pa.array(range(600), pa.int16()), 2)
    flags = [i % 3 == 0 for i in range(300)]
    columns = {"id": range(300), "text": texts, "list": lists, "pair": pairs, "flag": flags}
    table = pa.table(columns)
    path = write(tmp_path / "data" / "kinds.parquet", table)
    options = {"batch_size": 50, "shuffle": "none", "lists": "ragged"}
    loader = library.open(sidecar.socket, plan(path), **options)
    epoch, at = library.start(loader), 0
    for batch in library.batches(epoch):
        count, width = c_uint64(), c_size_t()
        library("batch_size", batch, byref(count), byref(width))
        assert (count.value, width.value) == (50, 5)
        kinds = [library.column(batch, name).kind for name in columns]
        assert kinds == [DENSE, ARROW, RAGGED, DENSE, DENSE]
        assert library.values(batch, "id")[0].tolist() == list(range(at, at + 50))
        assert library.values(batch, "pair")[0].tolist() == pairs[at : at + 50].to_pylist()
        assert library.values(batch, "flag")[0].tolist() == flags[at : at + 50]
        values, offsets = library.values(batch, "list")
        found = [values[a:b].tolist() for a, b in itertools.pairwise(offsets)]
        assert found == lists[at : at + 50]
        assert not library.values(batch, "text")
        at += 50
    assert at == 300
    library.drop("epoch_close", epoch)
    library.drop("loader_close", loader)


def arrow(library: Library, batch: c_void_p, index: int) -> pa.Array:
    # Room for either struct: ArrowArray has 80 bytes, ArrowSchema 72.
    array, schema = ctypes.create_string_buffer(80), ctypes.create_string_buffer(72)
    library("batch_arrow", batch, c_size_t(index), array, schema)
    return pa.Array._import_from_c(ctypes.addressof(array), ctypes.addressof(schema))


def test_arrow_outlives_its_batch(library: Library, sidecar: Process, tmp_path: Path) -> None:
    texts = [f"text {i}" if i % 7 else None for i in range(100)]
    lists = [list(range(i % 5)) for i in range(100)]
    table = pa.table({"id": range(100), "text": texts, "list": lists})
    path = write(tmp_path / "data" / "a.parquet", table)
    options = {"batch_size": 100, "shuffle": "none", "lists": "ragged"}
    loader = library.open(sidecar.socket, plan(path), **options)
    epoch = library.start(loader)
    _, batch = library.next(epoch)
    numbers, found = arrow(library, batch, 0), arrow(library, batch, 1)
    with pytest.raises(Failed, match="no Arrow form") as caught:
        arrow(library, batch, 2)
    assert caught.value.kind == "unsupported"
    with pytest.raises(Failed, match="there is no column 3: the batch has 3"):
        arrow(library, batch, 3)
    library.drop("batch_release", batch)
    library.drop("epoch_close", epoch)
    library.drop("loader_close", loader)
    assert found.to_pylist() == texts
    assert numbers.to_pylist() == list(range(100))


def test_all_columns_as_arrow(library: Library, sidecar: Process, tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": [1, None, 3],
            "list": [[1], None, []],
            "when": pa.array([1, 2, 3], pa.timestamp("us")),
        }
    )
    path = write(tmp_path / "data" / "a.parquet", table)
    options = {"batch_size": 3, "shuffle": "none", "format": "arrow"}
    loader = library.open(sidecar.socket, plan(path), **options)
    epoch = library.start(loader)
    for batch in library.batches(epoch):
        assert [library.column(batch, name).kind for name in table.column_names] == [ARROW] * 3
        for index, column in enumerate(table.columns):
            assert arrow(library, batch, index).equals(column.combine_chunks())
    library.drop("epoch_close", epoch)
    library.drop("loader_close", loader)


def test_pictures_of_different_sizes(library: Library, sidecar: Process) -> None:
    step = {"map_image": {"column": "image", "mode": "RGB", "dtype": "uint8"}}
    photos = ROOT / "examples" / "data" / "photos"
    dataset = fb.read_parquet(str(photos), columns=["image"]).map_image(
        "image", [], mode="RGB", dtype="uint8"
    )
    expected = next(iter(dataset.loader(4, shuffle="none", format="numpy")))["image"]
    text = plan(photos, ["image"], steps=[step])
    loader = library.open(sidecar.socket, text, batch_size=4, shuffle="none")
    epoch = library.start(loader)
    _, batch = library.next(epoch)
    assert library.column(batch, "image").kind == EACH
    found = library.values(batch, "image")
    assert len(found) == 4
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
    library.drop("batch_release", batch)
    library.drop("epoch_close", epoch)
    library.drop("loader_close", loader)


def test_an_epoch_goes_on_with_another_sidecar(
    library: Library, sidecar: Process, rows: str
) -> None:
    loader = library.open(sidecar.socket, plan(rows), batch_size=64, seed=7)
    epoch = library.start(loader)
    _, kept = library.next(epoch)
    sidecar.kill()
    seen = library.values(kept, "id")[0].tolist()
    # What was sent already is there; then it is waited for, and nothing is lost with a timeout.
    while (found := library.next(epoch, 0))[0] == OK:
        seen += library.values(found[1], "id")[0].tolist()
        library.drop("batch_release", found[1])
    assert found[0] == TIMEOUT
    sidecar.start()
    seen += library.ids(epoch)
    assert seen == ids(fb.read_parquet(rows).loader(64, seed=7, format="numpy"))
    assert library.values(kept, "id")[0].tolist() == seen[:64]
    for name, handle in [("batch_release", kept), ("epoch_close", epoch), ("loader_close", loader)]:
        library.drop(name, handle)


def test_a_sidecar_that_stays_away_is_an_error(
    library: Library, sidecar: Process, rows: str
) -> None:
    loader = library.open(sidecar.socket, plan(rows), wait=0.5, batch_size=64)
    epoch = library.start(loader)
    sidecar.kill()
    end = time.monotonic() + support.DEADLINE
    # Calls that each end sooner than the time for which it may be gone are one wait.
    with pytest.raises(Failed, match="nobody listens") as caught:
        wait_for_ever(library, epoch, end)
    assert caught.value.kind == "not_found"
    assert library.next(epoch)[0] == END
    library.drop("epoch_close", epoch)
    library.drop("loader_close", loader)
    sidecar.start()


def test_an_epoch_is_no_matter_of_a_forked_child(
    library: Library, sidecar: Process, rows: str
) -> None:
    loader = library.open(sidecar.socket, plan(rows), batch_size=64, shuffle="none")
    epoch = library.start(loader)
    _, batch = library.next(epoch)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with pytest.raises(Failed, match="started in the parent process") as caught:
                library.next(epoch)
            assert "forebay_epoch_start" in caught.value.hint
            assert library.values(batch, "id")[0].tolist() == list(range(64))
            library.drop("batch_release", batch)
            library.drop("epoch_close", epoch)
            own = library.start(loader)
            assert library.ids(own) == list(range(1_000))
            library.drop("epoch_close", own)
            library.drop("loader_close", loader)
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    # What the child gave back was not taken from the parent.
    assert library.values(batch, "id")[0].tolist() == list(range(64))
    library.drop("batch_release", batch)
    assert library.ids(epoch) == list(range(64, 1_000))
    library.drop("epoch_close", epoch)
    library.drop("loader_close", loader)


def test_wrong_arguments(library: Library, sidecar: Process, rows: str) -> None:
    with pytest.raises(Failed, match="sees other files") as caught:
        library.open(sidecar.socket, plan(rows), snapshot="another", batch_size=64)
    assert caught.value.kind == "changed"
    with pytest.raises(Failed, match="reconnect_timeout_seconds is -1"):
        library.open(sidecar.socket, plan(rows), wait=-1.0, batch_size=64)
    loader = library.open(sidecar.socket, plan(rows), batch_size=64)
    with pytest.raises(Failed, match="stride is 0"):
        library.start(loader, 0, 0)
    with pytest.raises(Failed, match="facts is NULL"):
        library("loader_facts", loader, None)
    with pytest.raises(Failed, match="state is NULL"):
        library("loader_load_state", loader, None)
    # Without a place for the error there is the status alone.
    assert library.c.forebay_loader_facts(None, byref(Facts()), None) == ERROR
    library.drop("loader_close", loader)
