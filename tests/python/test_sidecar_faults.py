"""What dies, lies or stands still around a sidecar, and what the others notice of it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import support
from sidecars import Process
from support import child, finish, forebay, ids, numbered, until

import forebay as fb

ROWS = 100_000


@pytest.fixture
def file(tmp_path: Path) -> str:
    return numbered(tmp_path / "data" / "a.parquet", ROWS, row_group=2000)


@pytest.fixture
def rows(file: str) -> fb.Dataset:
    return fb.read_parquet(file)


TRAINER = """
import sys
import forebay as fb
ds = fb.read_parquet(sys.argv[2])
loader = fb.connect(sys.argv[1]).loader(ds, 64, seed=7, format="numpy")
kept = []
for batch in loader:
    kept.append(batch)
    if len(kept) == 20:
        break
print("ready", flush=True)
sys.stdin.readline()
"""


def trainer(sidecar: Process, file: str, code: str = TRAINER) -> subprocess.Popen[str]:
    """Start a process that holds twenty batches, in the middle of an epoch."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(sidecar.socket), file],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_trainer_that_is_killed_gives_all_back(
    sidecar: Process, file: str, rows: fb.Dataset
) -> None:
    other = sidecar.connect().loader(rows, 64, seed=1, format="numpy")
    batches = iter(other)
    seen = [int(i) for _ in range(3) for i in next(batches)["id"]]
    process = trainer(sidecar, file)
    held = sidecar.status()["loaders"][1]["memory"]["consumer"]
    assert held >= 20 * 64 * 8
    process.kill()
    process.communicate()
    sidecar.until(lambda status: status["clients"] == 1, "one client is left")
    assert len(sidecar.status()["loaders"]) == 1
    seen += [int(i) for batch in batches for i in batch["id"]]
    assert seen == ids(rows.loader(64, seed=1, format="numpy"))


def test_a_trainer_that_is_killed_while_a_child_has_its_socket(sidecar: Process, file: str) -> None:
    code = TRAINER.replace(
        'print("ready", flush=True)',
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.close(0), os.close(1), os.close(2)\n"
        "    time.sleep(600)\n"
        'print("ready", flush=True)',
    )
    process = trainer(sidecar, file, code)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.communicate()
    try:
        sidecar.is_quiet()
    finally:
        for pid in children:
            os.kill(int(pid), signal.SIGKILL)


@pytest.mark.parametrize("held", [0, 3])
def test_a_sidecar_that_is_killed_and_comes_back(
    sidecar: Process, rows: fb.Dataset, held: int
) -> None:
    loader = sidecar.connect().loader(rows, 64, seed=7, format="numpy")
    seen, kept = [], []
    for step, batch in enumerate(loader):
        seen += batch["id"].tolist()
        kept = [*kept, batch][-held:] if held else []
        del batch
        if step in (10, 500):
            sidecar.kill()
            starts = threading.Timer(0.5, sidecar.start)
            starts.start()
        if step in (11, 501):
            starts.join()
    # What was held when the sidecar died is as it was.
    assert all(batch["id"].size == 64 for batch in kept)
    del kept
    assert seen == ids(rows.loader(64, seed=7, format="numpy"))
    assert loader.stats()["pauses"] == 2


def test_a_sidecar_that_stays_away_is_an_error_after_the_time(
    sidecar: Process, rows: fb.Dataset
) -> None:
    loader = sidecar.connect(reconnect_timeout=0.3).loader(rows, 64, seed=7, format="numpy")
    batches = iter(loader)
    seen = next(batches)["id"].tolist()
    sidecar.kill()
    with pytest.raises(fb.NotFoundError, match="reconnect_timeout"):
        seen.extend(int(i) for batch in batches for i in batch["id"])
    state = loader.state_dict()
    assert state["samples"] == len(seen)
    # Both gone: the trainer begins again at its checkpoint.
    sidecar.start()
    again = sidecar.connect().loader(rows, 64, seed=7, format="numpy")
    again.load_state_dict(state)
    assert seen + ids(again) == ids(rows.loader(64, seed=7, format="numpy"))
    del batches


def test_other_files_after_a_restart_are_an_error(
    sidecar: Process, file: str, rows: fb.Dataset
) -> None:
    batches = iter(sidecar.connect().loader(rows, 64, seed=7, format="numpy"))
    next(batches)
    sidecar.kill()
    numbered(Path(file), 500)
    sidecar.start()
    with pytest.raises(fb.ChangedError, match="sees other files"):
        for _ in batches:
            pass
    with pytest.raises(fb.ChangedError, match="sees other files"):
        sidecar.connect().loader(rows, 64)


def test_a_trainer_that_stands_still_holds_up_nobody(
    sidecar: Process, file: str, rows: fb.Dataset
) -> None:
    process = trainer(sidecar, file)
    process.send_signal(signal.SIGSTOP)
    try:
        expected = ids(rows.loader(64, seed=7, format="numpy"))
        for _ in range(2):
            assert ids(sidecar.connect().loader(rows, 64, seed=7, format="numpy")) == expected
    finally:
        process.kill()
        process.communicate()


def test_sigterm_lets_an_epoch_end(sidecar: Process, rows: fb.Dataset) -> None:
    loader = sidecar.connect(reconnect_timeout=0).loader(rows, 64, seed=7, format="numpy")
    batches = iter(loader)
    seen = next(batches)["id"].tolist()
    sidecar.process.send_signal(signal.SIGTERM)
    until(lambda: not sidecar.socket.exists(), "it takes no new work")
    with pytest.raises(fb.NotFoundError, match="no sidecar"):
        sidecar.connect()
    seen += [int(i) for batch in batches for i in batch["id"]]
    assert seen == ids(rows.loader(64, seed=7, format="numpy"))
    # The next epoch is the next sidecar's.
    with pytest.raises(fb.NotFoundError, match="no sidecar"):
        next(iter(loader))
    assert sidecar.process.wait(support.DEADLINE) == 0
    sidecar.start()
    assert len(ids(loader)) == len(seen)
    assert loader.epoch == 2


def test_sigterm_does_not_wait_for_idle_trainers(tmp_path: Path, rows: fb.Dataset) -> None:
    sidecar = Process(tmp_path / "s", "--grace", "3600")
    connection = sidecar.connect(reconnect_timeout=0)
    idle = connection.loader(rows, 64, seed=7, format="numpy")
    loader = connection.loader(rows, ROWS // 2, shuffle="none", format="numpy")
    batches = iter(loader)
    seen = next(batches)["id"].tolist()
    assert sidecar.stop() == 0
    # What was promised had been sent.
    seen += [int(i) for batch in batches for i in batch["id"]]
    assert seen == ids(rows.loader(ROWS, shuffle="none", format="numpy"))
    with pytest.raises(fb.NotFoundError, match="no sidecar"):
        next(iter(idle))


def test_sigterm_ends_within_the_grace(tmp_path: Path, file: str, rows: fb.Dataset) -> None:
    sidecar = Process(tmp_path / "s", "--grace", "0")
    loader = sidecar.connect().loader(rows, 64, seed=7, format="numpy")
    batches = iter(loader)
    seen = next(batches)["id"].tolist()
    stopped = trainer(sidecar, file)
    stopped.send_signal(signal.SIGSTOP)
    assert sidecar.stop() == 0
    stopped.kill()
    stopped.communicate()
    sidecar.start()
    seen += [int(i) for batch in batches for i in batch["id"]]
    assert seen == ids(rows.loader(64, seed=7, format="numpy"))
    assert loader.stats()["pauses"] == 1
    del batches, loader
    sidecar.is_quiet()
    assert sidecar.stop() == 0


def test_a_socket_that_is_there_already(sidecar: Process, tmp_path: Path) -> None:
    status, _, err = forebay("sidecar", "--socket", sidecar.socket)
    assert status == 1
    assert "a process listens at" in err
    other = tmp_path / "file"
    other.write_text("mine")
    status, _, err = forebay("sidecar", "--socket", other)
    assert (status, other.read_text()) == (1, "mine")
    assert "is no socket" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--memory", "900TiB"], "this container (or machine) has"),
        (["--memory", "lots"], "a size such as 8GiB"),
        (["--metrics", "nowhere"], "is not an address"),
        (["--log", "loud"], "does not say what to log"),
        (["--log-format", "xml"], "is not a form of logs"),
        (["--socket", "/" + "long" * 40], "at most 107 bytes"),
        (["--socket", "/no/such/folder/s"], "cannot open /no/such/folder"),
    ],
)
def test_wrong_options(tmp_path: Path, options: list[str], message: str) -> None:
    socket = [] if "--socket" in options else ["--socket", str(tmp_path / "s")]
    status, out, err = forebay("sidecar", *socket, *options)
    assert status in (1, 2)
    assert out == ""
    assert message in err
    assert not (tmp_path / "s").exists()


def test_a_log_on_a_full_disk_stops_nothing(tmp_path: Path, rows: fb.Dataset) -> None:
    full = tmp_path / "full.log"
    full.symlink_to("/dev/full")
    sidecar = Process(tmp_path / "full", "--log", "trace")
    assert sidecar.log.is_symlink()
    assert len(ids(sidecar.connect().loader(rows, 64, format="numpy"))) == ROWS // 64 * 64
    sidecar.is_quiet()
    assert sidecar.stop() == 0


def test_nobody_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(fb.NotFoundError, match="forebay sidecar --socket"):
        fb.connect(tmp_path / "none")
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "left"))
    left.close()
    with pytest.raises(fb.NotFoundError, match="nobody listens"):
        fb.connect(tmp_path / "left")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(fb.InvalidInputError, match="is no socket"):
        fb.connect(tmp_path / "file")
    with pytest.raises(fb.InvalidInputError, match="too long"):
        fb.connect("/tmp/" + "long" * 30)
    status, _, err = forebay("top", "--socket", tmp_path / "left")
    assert status == 1
    assert "nobody listens" in err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((7,), TypeError),
        (("s", "soon"), TypeError),
        (("s", -1), ValueError),
        (("s", float("nan")), ValueError),
    ],
)
def test_wrong_arguments(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    names = dict(zip(["socket", "reconnect_timeout"], arguments, strict=False))
    with pytest.raises(error, match="connect"):
        fb.connect(names["socket"], **{k: v for k, v in names.items() if k != "socket"})


def test_wrong_options_of_a_loader(sidecar: Process, rows: fb.Dataset) -> None:
    connection = sidecar.connect()
    with pytest.raises(TypeError, match="batch_sise"):
        connection.loader(rows, batch_sise=3)
    with pytest.raises(TypeError, match="dataset"):
        connection.loader("rows", 3)  # type: ignore[arg-type]
    with pytest.raises(fb.InvalidInputError, match="batch_size"):
        connection.loader(rows, 0)
    with pytest.raises(fb.InvalidInputError, match="world_size"):
        connection.loader(rows, 4, rank=0)


def consume(everything: Iterator[Any]) -> None:
    for _ in everything:
        pass


class Wire:
    """The protocol, spoken by hand."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(support.DEADLINE)
        self.socket.connect(str(path))

    def say(self, **message: Any) -> None:
        body = json.dumps(message).encode()
        self.socket.sendall(struct.pack("<IHH", len(body), 0, 0) + body)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def hear(self) -> dict[str, Any]:
        (length, _, _) = struct.unpack("<IHH", self._exactly(8))
        return json.loads(self._exactly(length))

    def is_closed(self) -> bool:
        try:
            self._exactly(1)
        except (EOFError, ConnectionResetError):
            return True
        return False


def test_a_step_that_the_sidecar_does_not_know_is_named(sidecar: Process, file: str) -> None:
    wire = Wire(sidecar.socket)
    wire.say(say="hello", protocol=1, client="a later version")
    assert wire.hear()["say"] == "welcome"
    plan = {"source": {"parquet": {"uri": file}}, "steps": [{"dream": {"column": "id"}}]}
    options = json.dumps({"batch_size": 4})
    wire.say(say="open", plan=json.dumps(plan), options=options, snapshot=None)
    reply = wire.hear()
    assert reply["say"] == "failed"
    assert "dream" in reply["message"]
    assert reply["place"].startswith("steps[0]")
    # The connection is as good as before.
    wire.say(say="status")
    assert wire.hear()["say"] == "report"
    wire.socket.close()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: forebay\r\n\r\n",
        struct.pack("<IHH", 2**31, 0, 0),
        struct.pack("<IHH", 10, 9, 0) + b"0123456789",
        struct.pack("<IHH", 3, 1, 0) + b"{}\n",
        struct.pack("<IHH", 2, 0, 0) + b"{}",
        struct.pack("<IHH", 15, 0, 0) + b'{"say":"dance"}',
        struct.pack("<IHH", 16, 0, 0) + b'{"say":"status"}',
        struct.pack("<IHH", 100, 0, 0) + b"half of it",
    ],
)
def test_nonsense_ends_its_connection_and_nothing_else(sidecar: Process, data: bytes) -> None:
    wire = Wire(sidecar.socket)
    wire.socket.sendall(data)
    if data.endswith(b"half of it"):
        wire.socket.shutdown(socket.SHUT_WR)
    else:
        with contextlib.suppress(ConnectionResetError):
            assert wire.hear()["say"] == "failed"
    assert wire.is_closed()
    sidecar.is_quiet()
    assert sidecar.connect().status()["phase"] == "ready"


def test_another_protocol_is_told_ours(sidecar: Process) -> None:
    wire = Wire(sidecar.socket)
    wire.say(say="hello", protocol=99, client="a later version")
    assert wire.hear()["protocol"] == 1
    assert wire.is_closed()


def test_a_lying_trainer(sidecar: Process, file: str, rows: fb.Dataset) -> None:
    wire = Wire(sidecar.socket)
    wire.say(say="hello", protocol=1, client="liar")
    wire.hear()
    plan = json.dumps({"source": {"parquet": {"uri": file}}})
    wire.say(say="open", plan=plan, options=json.dumps({"batch_size": 4}), snapshot=None)
    start = {"say": "start", "state": wire.hear()["next"], "first": 0}
    wire.say(**start, run=1, stride=0, credit=1)
    assert wire.hear()["say"] == "failed"
    wire.say(**start, run=1, stride=1, credit=2**32 - 1)
    assert wire.hear()["say"] == "started"
    wire.say(**start, run=1, stride=1, credit=1)
    for segment in (0, 1, 2**63):
        wire.say(say="release", segment=segment)
        wire.say(say="release", segment=segment)
        wire.say(say="taken", run=segment, waited=2**64 - 1)
        wire.say(say="stop", run=segment + 5)
    # It never reads, and others do not notice.
    assert len(ids(sidecar.connect().loader(rows, 64, format="numpy"))) == ROWS // 64 * 64
    wire.socket.close()


def test_a_trainer_that_reads_nothing_does_not_hold_up_the_end(tmp_path: Path) -> None:
    sidecar = Process(tmp_path / "s", "--grace", "0")
    wire = Wire(sidecar.socket)
    wire.say(say="hello", protocol=1, client="deaf")
    wire.socket.settimeout(0.5)
    with pytest.raises(TimeoutError):
        consume(wire.say(say="status") for _ in itertools.count())
    assert sidecar.stop() == 0


def test_a_batch_that_cannot_be_sent_is_an_error(tmp_path: Path, rows: fb.Dataset) -> None:
    sidecar = Process(tmp_path / "s")
    loader = sidecar.connect().loader(rows, 64, format="arrow", prefetch=1)
    limit = str(sidecar.descriptors() + 12)
    pid = str(sidecar.process.pid)
    subprocess.run(["prlimit", "--pid", pid, f"--nofile={limit}:{limit}"], check=True)
    kept: list[Any] = []
    with pytest.raises((fb.ResourceError, fb.StorageError)):
        kept.extend(loader)
    del kept, loader
    # The status page needs a descriptor too, which is there again.
    sidecar.is_quiet()
    assert sidecar.stop() == 0


def test_a_trainer_without_descriptors_is_told_so(sidecar: Process, file: str) -> None:
    code = """
import resource, sys
import forebay as fb
ds = fb.read_parquet(sys.argv[2])
loader = fb.connect(sys.argv[1]).loader(ds, 64, format="numpy")
batches = iter(loader)
next(batches)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
kept = []
try:
    while True:
        kept.append(next(batches))
except fb.ResourceError as e:
    print(e)
"""
    status, out, err = finish(child(code, str(sidecar.socket), file))
    assert (status, err) == (0, "")
    assert "no file descriptor is left" in out


def test_many_held_batches_need_no_descriptors(sidecar: Process, file: str) -> None:
    code = """
import os, sys
import forebay as fb
ds = fb.read_parquet(sys.argv[2])
kept = list(fb.connect(sys.argv[1]).loader(ds, 64, format="numpy"))
print(len(kept), len(os.listdir("/proc/self/fd")) < 50)
"""
    status, out, err = finish(child(code, str(sidecar.socket), file))
    assert (status, out.split()) == (0, [str(ROWS // 64), "True"]), err


def test_a_sidecar_in_another_container(tmp_path: Path, rows: fb.Dataset) -> None:
    """Processes of another PID namespace have no ids here."""
    command = ["unshare", "--pid", "--fork", "--kill-child", "true"]
    if not shutil.which("unshare") or subprocess.run(command, check=False).returncode:
        pytest.skip("this user may not make a PID namespace")
    path = tmp_path / "s"
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [*command[:-1], str(support.BINARY), "sidecar", "--socket", str(path)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    # The file is there a moment before anybody listens.
    assert process.stdout is not None
    assert process.stdout.readline().startswith("serving at")
    try:
        assert len(ids(fb.connect(path).loader(rows, 64, format="numpy"))) == ROWS // 64 * 64
    finally:
        process.kill()
        process.communicate()


def test_ctrl_c_while_a_sidecar_says_nothing(sidecar: Process) -> None:
    code = """
import sys
import forebay as fb
print("here", flush=True)
fb.connect(sys.argv[1])
"""
    sidecar.process.send_signal(signal.SIGSTOP)
    try:
        process = child(code, str(sidecar.socket))
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGINT)
        _, _, err = finish(process)
        assert "KeyboardInterrupt" in err
    finally:
        sidecar.process.send_signal(signal.SIGCONT)


def test_ctrl_c_while_the_sidecar_is_away(sidecar: Process, file: str) -> None:
    code = TRAINER.replace(
        'print("ready", flush=True)\nsys.stdin.readline()',
        """
print("ready", flush=True)
sys.stdin.readline()
try:
    print("loop", flush=True)
    for batch in loader:
        pass
except KeyboardInterrupt:
    print("interrupted", flush=True)
""",
    )
    process = trainer(sidecar, file, code)
    sidecar.kill()
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout is not None
    assert process.stdout.readline() == "loop\n"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=support.DEADLINE)
    assert (process.returncode, out) == (0, "interrupted\n")
    sidecar.start()


def test_m03_exit_in_the_middle(sidecar: Process, file: str) -> None:
    code = TRAINER.replace("sys.stdin.readline()", "batches = iter(loader); next(batches)")
    status, _, err = finish(child(code, str(sidecar.socket), file))
    assert (status, err) == (0, "")
