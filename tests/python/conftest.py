"""Fixtures: the binary, real data, and a check that no test leaves memory or threads behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import support
from s3_server import S3Server
from sidecars import Process

import forebay as fb

PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Remember whether the test itself passed."""
    report = yield
    if report.when == "call":
        item.stash[PASSED] = report.passed
    return report


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """When a test is over, every gauge is back at zero."""
    yield
    if not request.node.stash.get(PASSED, False):
        return  # its traceback holds on to whatever the test had
    gc.collect()
    support.until(lambda: fb.memory().used == 0, f"memory back at 0: {fb.memory()}")
    support.until(lambda: fb.memory().accounts == 0, f"no open account: {fb.memory()}")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FOREBAY_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Process]:
    """A sidecar that must be quiet and end in order when the test is over."""
    process = Process(tmp_path / "forebay.sock")
    yield process
    try:
        process.is_quiet()
    finally:
        status = process.stop()
    assert status == 0
    assert not process.socket.exists()


@pytest.fixture(scope="session")
def binary() -> Path:
    """Where the command line is; `make test` builds it."""
    assert support.BINARY.exists(), f"{support.BINARY} is missing; set FOREBAY_BIN"
    return support.BINARY


@pytest.fixture(scope="session")
def data() -> Path:
    """Real files that the repository does not ship."""
    if not support.DATA.is_dir():
        pytest.skip(f"{support.DATA} is not there; set FOREBAY_TEST_DATA")
    return support.DATA


@pytest.fixture(scope="session")
def kuberay() -> Path:
    """KubeRay's schemas, which the repository does not ship."""
    if not support.KUBERAY.is_dir():
        pytest.skip(f"{support.KUBERAY} is not there; FOREBAY_TEST_DATA names the folder beside it")
    return support.KUBERAY


@pytest.fixture(scope="session")
def flights(data: Path) -> str:
    return str(data / "flights")


@pytest.fixture(scope="session")
def photographs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The 200 photographs in two files with row groups of 20."""
    paths = sorted((data / "photos").iterdir())
    folder = tmp_path_factory.mktemp("photographs")
    for part in range(2):
        mine = paths[part * 100 : part * 100 + 100]
        support.write(
            folder / f"part-{part}.parquet",
            {
                "image": [path.read_bytes() for path in mine],
                "id": list(range(part * 100, part * 100 + len(mine))),
            },
            row_group_size=20,
        )
    return str(folder)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server on loopback, with the bucket ``data``."""
    server = S3Server(tmp_path_factory.mktemp("s3") / "server")
    try:
        server.create_bucket("data")
        yield server
    finally:
        server.stop()


@pytest.fixture
def s3_environment(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, with its address and credentials in this process's environment."""
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    return s3
