"""S3 against a real server: list, glob, read, write, and what it refuses."""

from __future__ import annotations

import contextlib
import functools
import http.server
import io
import itertools
import json
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from s3_server import ACCESS_KEY, OTHER_KEY, OTHER_SECRET, SECRET_KEY, S3Server
from support import child, digest, finish, forebay, ids, in_order

import forebay as fb

pytestmark = pytest.mark.usefixtures("s3_environment")


def _parquet(start: int, rows: int = 100) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"id": np.arange(start, start + rows)}), out, row_group_size=25)
    return out.getvalue()


@pytest.fixture(scope="module")
def numbers(s3: S3Server) -> str:
    """Three files of 100 rows, things that are no data, and hive partitions."""
    for part in range(3):
        s3.put(f"data/in/part-{part}.parquet", _parquet(part * 100))
    s3.put("data/in/_SUCCESS", b"")
    s3.put("data/in/.hidden.parquet", b"no")
    s3.put("data/in/notes.txt", b"no")
    for day in ("mon", "a b%2Fc"):
        s3.put(
            f"data/hive/day={day.replace('%', '%25').replace(' ', '%20')}/x.parquet", _parquet(0)
        )
    return "s3://data/in"


@pytest.fixture
def options(s3: S3Server) -> dict[str, str]:
    return {"endpoint": s3.endpoint, "region": "us-east-1"}


def test_folder_glob_file_and_list(numbers: str) -> None:
    for uri, rows in [
        (numbers, 300),
        (f"{numbers}/", 300),
        (f"{numbers}/*.parquet", 300),
        (f"{numbers}/part-[12].parquet", 200),
        (f"{numbers}/part-1.parquet", 100),
        ([f"{numbers}/part-1.parquet", f"{numbers}/part-1.parquet"], 200),
        ("s3://data/**/part-?.parquet", 300),
    ]:
        assert fb.read_parquet(uri).count() == rows, uri


def test_rows_come_in_order_and_once(numbers: str) -> None:
    dataset = fb.read_parquet(numbers)
    rows = np.concatenate([b["id"] for b in in_order(dataset)])
    assert rows.tolist() == list(range(300))
    loader = dataset.loader(16, seed=2, epoch_end="partial", format="numpy")
    order = ids(loader)
    assert sorted(order) == list(range(300))
    assert dataset.filter("id >= 290").count() == 10


def test_hive_partitions(numbers: str) -> None:
    del numbers
    dataset = fb.read_parquet("s3://data/hive")
    assert dataset.filter("day = 'mon'").count() == 100
    assert dataset.count() == 200


def test_options_as_arguments(
    numbers: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.delenv("AWS_REGION")
    assert fb.read_parquet(numbers, **options).count() == 300
    assert fb.read_parquet(numbers, **options, path_style=True).count() == 300


def test_credentials_never_enter_plan_or_explain(numbers: str) -> None:
    dataset = fb.read_parquet(numbers).filter("id > 3")
    for text in (json.dumps(dataset.plan()), dataset.explain(), repr(dataset)):
        assert SECRET_KEY not in text
        assert ACCESS_KEY not in text


# --- writing --------------------------------------------------------------------------------------


def _s3_filesystem(s3: S3Server) -> pyarrow.fs.S3FileSystem:
    return pyarrow.fs.S3FileSystem(
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
        endpoint_override=f"127.0.0.1:{s3.port}",
        scheme="http",
        region="us-east-1",
    )


def test_write_and_modes(numbers: str, s3: S3Server) -> None:
    out = "s3://data/out-modes"
    dataset = fb.read_parquet(numbers)
    summary = dataset.write_parquet(out)
    assert (summary["rows_written"], summary["files"]) == (300, 1)
    assert fb.read_parquet(out).count() == 300
    table = pq.read_table("data/out-modes", filesystem=_s3_filesystem(s3))
    assert table.column("id").to_pylist() == list(range(300))
    with pytest.raises(fb.AlreadyExistsError, match="out-modes"):
        dataset.write_parquet(out)
    dataset.limit(5).write_parquet(out, mode="append")
    assert fb.read_parquet(out).count() == 305
    dataset.limit(7).write_parquet(out, mode="overwrite")
    assert fb.read_parquet(out).count() == 7
    data = [key for key in s3.keys("data", "out-modes") if "/_forebay/" not in key]
    assert len(data) == 1


def test_write_of_several_parts(numbers: str, s3: S3Server, tmp_path: Path) -> None:
    # Beyond 5 MiB a multipart upload has several parts: random numbers do not compress.
    rows = np.random.default_rng(0).integers(0, 2**62, 2_000_000)
    pq.write_table(pa.table({"id": rows}), tmp_path / "in.parquet", row_group_size=100_000)
    del numbers
    summary = fb.read_parquet(tmp_path).write_parquet("s3://data/out-large", row_group_bytes="1MiB")
    assert summary["bytes_written"] > 12 << 20
    assert summary["files"] == 1
    table = pq.read_table("data/out-large", filesystem=_s3_filesystem(s3))
    assert np.array_equal(table.column("id").to_numpy(), rows)


def test_overwrite_of_what_is_being_read_is_refused(s3: S3Server) -> None:
    s3.put("data/own/deep/a.parquet", _parquet(0))
    dataset = fb.read_parquet("s3://data/own/deep/a.parquet")
    for target in ("s3://data/own/deep", "s3://data/own/", "s3://data"):
        with pytest.raises(fb.InvalidInputError, match="holds its source"):
            dataset.write_parquet(target, mode="overwrite")
    s3.put("data/theirs/k=1/b.parquet", _parquet(0))
    with pytest.raises(fb.AlreadyExistsError, match="1 Parquet files in subfolders"):
        dataset.write_parquet("s3://data/theirs", mode="overwrite")
    assert dataset.write_parquet("s3://data/own/dee", mode="overwrite")["files_replaced"] == 0
    assert dataset.write_parquet("s3://data/own/dee", mode="overwrite")["files_replaced"] == 1
    assert fb.read_parquet("s3://data/theirs").count() == 100


def test_a_failing_job_commits_nothing(s3: S3Server, tmp_path: Path) -> None:
    images = pa.table({"image": [b"no picture"] * 10})
    pq.write_table(images, tmp_path / "bad.parquet")
    dataset = fb.read_parquet(tmp_path).map_image("image", [fb.Resize([4, 4])], mode="RGB")
    with pytest.raises((fb.CorruptDataError, fb.UnsupportedError)):
        dataset.write_parquet("s3://data/out-failed")
    assert s3.keys("data", "out-failed") == []
    with pytest.raises(fb.NotFoundError):
        fb.read_parquet("s3://data/out-failed")


def test_the_command_line(numbers: str, s3: S3Server, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        f"source: {{ parquet: {numbers} }}\n"
        "steps: [{ filter: id >= 150 }]\n"
        "sink: { parquet: { uri: s3://data/out-cli, mode: overwrite } }\n"
    )
    status, printed, err = forebay("run", job, "--json")
    assert (status, err) == (0, "")
    assert json.loads(printed)["rows_written"] == 150
    status, printed, err = forebay("inspect", "s3://data/out-cli", "--json")
    assert (status, err) == (0, "")
    assert json.loads(printed)["rows"] == 150
    # The same with options instead of variables.
    status, printed, err = forebay(
        "inspect", numbers, "--endpoint", s3.endpoint, "--region", "us-east-1", AWS_ENDPOINT_URL=""
    )
    assert (status, err) == (0, "")
    assert "300 rows" in printed


# --- faults ---------------------------------------------------------------------------------------


class Faulty:
    """A proxy that cuts connections in the middle of an answer, as often as it is told."""

    def __init__(self, port: int, cuts: int) -> None:
        self._target = ("127.0.0.1", port)
        self._left = cuts
        self._random = random.Random(5)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.cut = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._target) as server:
            allowed = None
            if self._left > 0:
                self._left -= 1
                allowed = self._random.randrange(0, 60_000)
            done = threading.Event()
            threading.Thread(
                target=self._copy, args=(client, server, None, done), daemon=True
            ).start()
            self._copy(server, client, allowed, done)

    def _copy(
        self,
        source: socket.socket,
        target: socket.socket,
        allowed: int | None,
        done: threading.Event,
    ) -> None:
        try:
            while not done.is_set():
                piece = source.recv(4096)
                if not piece:
                    break
                if allowed is not None:
                    if len(piece) > allowed:
                        target.sendall(piece[:allowed])
                        self.cut += 1
                        break
                    allowed -= len(piece)
                target.sendall(piece)
        except OSError:
            pass
        done.set()
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


def test_t14_reads_that_fail_in_the_middle_are_read_again(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in range(4):
        rows = np.random.default_rng(part).integers(0, 2**62, 20_000)
        out = io.BytesIO()
        pq.write_table(pa.table({"id": rows}), out, row_group_size=2000)
        s3.put(f"data/faults/part-{part}.parquet", out.getvalue())

    def epoch() -> str:
        loader = fb.read_parquet("s3://data/faults").loader(
            500, seed=4, epoch_end="partial", format="numpy"
        )
        return digest(iter(loader))

    whole = epoch()
    proxy = Faulty(s3.port, cuts=12)
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        assert epoch() == whole
        assert proxy.cut > 0, "the proxy was not in the way"
    finally:
        proxy.close()


def test_ctrl_c_while_a_store_does_not_answer() -> None:
    code = """
import os, signal, socket, threading
import forebay as fb
silent = socket.create_server(("127.0.0.1", 0))
os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    fb.read_parquet("s3://data/in")
except KeyboardInterrupt:
    print("interrupted")
"""
    assert finish(child(code)) == (0, "interrupted\n", "")


# --- what can be wrong ----------------------------------------------------------------------------


def _both(uri: str, words: list[str]) -> fb.ForebayError:
    """The error in Python and on the command line."""
    with pytest.raises(fb.ForebayError) as caught:
        fb.read_parquet(uri)
    status, printed, err = forebay("inspect", uri)
    assert (status, printed) == (1, "")
    for text in (str(caught.value), err):
        for word in words:
            assert word in text
        for secret in (SECRET_KEY, OTHER_SECRET):
            assert secret not in text
        assert "panicked" not in text
        assert len(text.strip().splitlines()) <= 12, text
    return caught.value


def test_missing_bucket_key_and_empty_glob(numbers: str) -> None:
    assert isinstance(_both("s3://no-such-bucket/x", ["no-such-bucket"]), FileNotFoundError)
    assert isinstance(_both(f"{numbers}/none.parquet", ["none.parquet"]), FileNotFoundError)
    assert isinstance(_both(f"{numbers}/*.csv", ["*.csv"]), FileNotFoundError)
    assert isinstance(_both("s3://data/nothing/here", ["nothing/here"]), FileNotFoundError)


def test_s02_wrong_secret(numbers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    error = _both(numbers, ["data"])
    assert isinstance(error, PermissionError)
    assert "AWS_" in str(error)


def test_s02_unknown_key(numbers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    assert isinstance(_both(numbers, ["data"]), PermissionError)


def test_a_bucket_that_may_not_be_read(
    numbers: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment(OTHER_KEY, OTHER_SECRET).items():
        monkeypatch.setenv(name, value)
    assert isinstance(_both(numbers, ["data"]), PermissionError)
    assert isinstance(_both(f"{numbers}/part-0.parquet", ["part-0.parquet"]), PermissionError)


def test_a_bucket_that_may_not_be_written(
    numbers: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    del numbers
    pq.write_table(pa.table({"id": [1]}), tmp_path / "in.parquet")
    dataset = fb.read_parquet(tmp_path)
    for name, value in s3.environment(OTHER_KEY, OTHER_SECRET).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(fb.PermissionDeniedError, match="data"):
        dataset.write_parquet("s3://data/forbidden")
    assert s3.keys("data", "forbidden") == []


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    error = _both("s3://data/in", [str(port)])
    assert isinstance(error, OSError)
    said = f"nothing answers at http://127.0.0.1:{port} (connection refused, 5 attempts)"
    assert said in str(error)


def test_a_web_server_is_no_s3_server(tmp_path: Path) -> None:
    handler = functools.partial(_Pages, directory=str(tmp_path))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        for uri in ("s3://b/x/", "s3://b/x.parquet", "s3://b"):
            with pytest.raises(fb.StorageError, match="does not speak S3") as caught:
                fb.read_parquet(uri, endpoint=endpoint)
            assert endpoint in str(caught.value)
    finally:
        server.shutdown()
        server.server_close()


class _Pages(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class _Endless(http.server.BaseHTTPRequestHandler):
    """Lists for ever: the same token, or a new one with every page, and never a key."""

    tokens: ClassVar[Iterator[str]] = itertools.repeat("again")
    # One packet an answer: there are a thousand of them.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        body = (
            '<?xml version="1.0"?><ListBucketResult><Name>b</Name><KeyCount>0</KeyCount>'
            f"<IsTruncated>true</IsTruncated><NextContinuationToken>{next(self.tokens)}"
            "</NextContinuationToken></ListBucketResult>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("kind", ["the same token", "new tokens"])
def test_a_listing_that_does_not_end(kind: str) -> None:
    same = itertools.repeat("again")
    tokens = same if kind == "the same token" else (str(n) for n in itertools.count())
    handler = type("Handler", (_Endless,), {"tokens": tokens, "protocol_version": "HTTP/1.1"})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        for uri in ("s3://b/x/", "s3://b/*.parquet"):
            with pytest.raises(fb.StorageError, match="does not end") as caught:
                fb.read_parquet(uri, endpoint=endpoint)
            assert endpoint in str(caught.value)
    finally:
        server.shutdown()
        server.server_close()


class _Busy(http.server.BaseHTTPRequestHandler):
    """One object, whose first reads are refused: the server is busy."""

    protocol_version = "HTTP/1.1"
    body: ClassVar[bytes] = _parquet(0)
    refusals: ClassVar[list[int]] = []

    def do_HEAD(self) -> None:
        self._answer(200, self.body, 0)

    def do_GET(self) -> None:
        if self.refusals:
            self._answer(self.refusals.pop(), b"", 0)
            return
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        first = int(first) if first else len(self.body) - int(last)
        last = int(last) if last and not self.headers["Range"].startswith("bytes=-") else None
        end = len(self.body) if last is None else last + 1
        self._answer(206, self.body[first:end], first)

    def _answer(self, status: int, body: bytes, first: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"one"')
        self.send_header("Last-Modified", "Wed, 02 Dec 2026 00:00:00 GMT")
        if status == 206:
            last = first + len(body) - 1
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(self.body)}")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_retries_within_the_client_are_counted() -> None:
    refusals: list[int] = []
    handler = type("Handler", (_Busy,), {"refusals": refusals})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        loader = fb.read_parquet("s3://b/x.parquet", endpoint=endpoint).loader(
            100, shuffle="none", format="numpy"
        )
        assert loader.stats()["retries"] == 0
        refusals += [503, 429, 500]
        assert ids(loader) == list(range(100))
        assert loader.stats()["retries"] == 3
        assert loader.stats()["batch_bytes"] == 800
    finally:
        server.shutdown()
        server.server_close()


def test_not_parquet_on_s3(s3: S3Server) -> None:
    s3.put("data/odd/text.parquet", b"id,name\n" * 100)
    s3.put("data/odd-cut/cut.parquet", _parquet(0)[:-50])
    assert isinstance(_both("s3://data/odd/text.parquet", ["text.parquet"]), ValueError)
    assert isinstance(_both("s3://data/odd-cut", ["cut.parquet"]), ValueError)


def test_an_object_that_changed_since_it_was_listed(s3: S3Server) -> None:
    s3.put("data/change/x.parquet", _parquet(0))
    dataset = fb.read_parquet("s3://data/change")
    s3.put("data/change/x.parquet", _parquet(500))
    with pytest.raises(fb.ChangedError, match=r"change/x\.parquet"):
        in_order(dataset)
