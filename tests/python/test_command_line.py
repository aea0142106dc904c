"""The command line as a user runs it: the examples, what it says, progress in a log, signals."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import (
    BINARY,
    ROOT,
    data_files,
    finish,
    forebay,
    numbered,
    start_forebay,
    until,
    write,
)

import forebay as fb

pytestmark = pytest.mark.usefixtures("binary")

EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.yaml"))


def _example(name: str, out: Path) -> Path:
    """Copy an example whose output goes to a folder of the test's own."""
    text = (ROOT / "examples" / name).read_text()
    text, n = re.subn(r"uri: out/\S+", f"uri: {out}", text)
    assert n == 1
    job = out.with_suffix(".yaml")
    job.write_text(text)
    return job


def test_the_examples_are_there() -> None:
    assert {"flights.yaml", "photos.yaml"} <= set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    status, printed, err = forebay("run", _example(name, out), "--json")
    assert (status, err) == (0, "")
    summary = json.loads(printed)
    table = pq.read_table(out)
    assert summary["rows_kept"] == summary["rows_written"] == table.num_rows > 0
    assert summary["rows_in_source"] == summary["rows_kept"] + summary["rows_dropped"]
    assert summary["blocks_skipped"] > 0
    assert [file["uri"] for file in summary["files"]] == [str(f) for f in data_files(out)]
    assert Path(summary["manifest"]).is_file()
    # Once more, as text: the mode is overwrite.
    status, printed, err = forebay("run", _example(name, out), "--threads", "1")
    assert (status, err) == (0, "")
    for word in ("read", "kept", "dropped", "wrote", "took", str(out)):
        assert word in printed
    assert pq.read_table(out).equals(table)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_explain(name: str) -> None:
    job = f"examples/{name}"
    status, printed, err = forebay("explain", job)
    assert (status, err) == (0, "")
    for word in ("source:", "columns:", "row groups:", "pruned", "bytes:", "steps[0]", "sink:"):
        assert word in printed
    status, printed, err = forebay("explain", job, "--json")
    assert (status, err) == (0, "")
    plan = json.loads(printed)
    assert 0 < plan["source"]["row_groups_read"] < plan["source"]["row_groups"]
    assert 0 < plan["source"]["bytes_read"] <= plan["source"]["bytes"]
    assert [step["place"].split(".")[0] for step in plan["steps"]] == [
        f"steps[{n}]" for n in range(len(plan["steps"]))
    ]


def test_explain_does_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    status, _, _ = forebay("explain", _example("flights.yaml", out))
    assert status == 0
    assert not out.exists()


def test_inspect() -> None:
    status, printed, err = forebay("inspect", "examples/data")
    assert (status, err) == (0, "")
    status, as_json, err = forebay("inspect", "examples/data", "--json", "--rows", "2")
    assert (status, err) == (0, "")
    found = json.loads(as_json)
    files = sorted((ROOT / "examples" / "data").rglob("*.parquet"))
    assert len(found["files"]) == len(files)
    assert found["rows"] == sum(pq.ParquetFile(f).metadata.num_rows for f in files)
    assert found["bytes"] == sum(f.stat().st_size for f in files)
    assert len(found["head"]) == 2
    for column in found["columns"]:
        assert column["name"] in printed
    assert f"{found['rows']:,} rows" in printed


def test_inspect_shows_odd_values_shortly(tmp_path: Path) -> None:
    table = {
        "long": ["x" * 1000],
        "bytes": [b"\0" * 5000],
        "none": pa.nulls(1),
        "control": ["\x1b[31mred\a\n"],
    }
    path = write(tmp_path / "odd.parquet", table)
    status, printed, err = forebay("inspect", path)
    assert (status, err) == (0, "")
    assert "x" * 100 not in printed
    assert "4.9 KiB" in printed
    # A value must not be able to talk to the terminal.
    assert "\x1b" not in printed
    assert "\a" not in printed


def test_inspect_keeps_names_off_the_terminal(tmp_path: Path) -> None:
    write(tmp_path / "a\x1b[2J\n\u202e.parquet", {"c\x1b[31m": [1], "d": [2]})
    status, out, err = forebay("inspect", tmp_path)
    assert (status, err) == (0, "")
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "a\\u{1b}[2J\\n\\u{202e}.parquet" in out
    assert "c\\u{1b}[31m" in out
    found = json.loads(forebay("inspect", tmp_path, "--json")[1])
    assert found["columns"][0]["name"] == "c\x1b[31m"
    assert found["head"] == [{"c\x1b[31m": "1", "d": "2"}]


def test_help_and_version() -> None:
    status, printed, err = forebay("--help")
    assert (status, err) == (0, "")
    for command in ("run", "explain", "inspect"):
        assert command in printed
    assert forebay("--version") == (0, f"forebay {fb.__version__}\n", "")
    assert forebay("run", "--help")[0] == 0


def test_the_same_plan_in_python_and_in_yaml(tmp_path: Path) -> None:
    path = numbered(tmp_path / "in.parquet", 1000)
    dataset = fb.read_parquet(path).filter("id % 2 = 1").with_column("x", "id + half").limit(100)
    job = tmp_path / "job.yaml"
    sink = {"parquet": {"uri": str(tmp_path / "yaml")}}
    job.write_text(json.dumps({**dataset.plan(), "sink": sink}))
    assert forebay("run", job)[0] == 0
    dataset.write_parquet(tmp_path / "python")
    assert pq.read_table(tmp_path / "yaml").equals(pq.read_table(tmp_path / "python"))


# --- progress -------------------------------------------------------------------------------------


def _large_job(folder: Path, copies: int = 200) -> Path:
    path = numbered(folder / "in.parquet", 200_000, row_group=20_000)
    job = folder / "job.yaml"
    job.write_text(
        json.dumps(
            {
                "source": {"parquet": {"uri": [path] * copies}},
                "steps": [{"filter": "CAST(id AS VARCHAR) LIKE '%7%'"}],
                "sink": {"parquet": {"uri": str(folder / "out"), "file_bytes": "1MiB"}},
            }
        )
    )
    return job


LINE = r"^\d+/\d+ blocks  [\d,]+ rows, .*rows/s, ETA .*, bottleneck: \w+"


def test_m09_progress_in_a_log_file_is_a_throttled_line(tmp_path: Path) -> None:
    job = _large_job(tmp_path, copies=4)
    status, printed, err = forebay("run", job)
    assert status == 0
    # Ten seconds are between two lines; a shorter job says nothing but its result.
    took = float(re.search(r"took\s+([0-9.]+) s", printed).group(1))
    lines = err.splitlines()
    assert len(lines) <= took / 10
    assert "kept" in printed


def test_m09_lines_of_a_log_file(tmp_path: Path) -> None:
    job = _large_job(tmp_path, copies=4)
    status, _, err = forebay("run", job, FOREBAY_PROGRESS_SECONDS="0")
    assert status == 0
    lines = err.splitlines()
    assert lines
    for line in lines:
        assert re.search(LINE, line)
    # Plain lines: nothing that moves a cursor.
    assert "\r" not in err
    assert "\x1b" not in err
    done = [int(line.split("/")[0]) for line in lines]
    assert done == sorted(done)


def test_progress_on_a_terminal_is_live(tmp_path: Path) -> None:
    job = _large_job(tmp_path, copies=8)
    master, slave = pty.openpty()

    process = subprocess.Popen(
        [str(BINARY), "run", str(job)],
        stdout=subprocess.PIPE,
        stderr=slave,
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(slave)
    seen = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        seen += piece
    os.close(master)
    out, _ = process.communicate()
    assert process.returncode == 0
    assert b"kept" in out
    assert b"blocks" in seen
    assert b"bottleneck" in seen


# --- signals --------------------------------------------------------------------------------------


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_signals_end_a_run_in_order(tmp_path: Path, number: signal.Signals) -> None:
    job = _large_job(tmp_path)
    out = tmp_path / "out"
    # Whoever runs the tests may ignore signals (nohup does), and children inherit that.
    before = signal.signal(number, signal.default_int_handler)
    try:
        process = start_forebay("run", job)
    finally:
        signal.signal(number, before)
    until(
        lambda: list(out.glob("_forebay/*/part-*")) != [] or process.poll() is not None,
        "the run has staged something",
    )
    process.send_signal(number)
    status, printed, err = finish(process)
    assert (status, printed) == (1, "")
    assert "stopped by a signal" in err
    assert "panicked" not in err
    # Nothing is committed, and nothing is left.
    assert not out.exists()


def test_a_hangup_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    job = _large_job(tmp_path, copies=20)
    out = tmp_path / "out"
    process = subprocess.Popen(
        ["nohup", str(BINARY), "run", str(job)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(
        lambda: list(out.glob("_forebay/*/part-*")) != [] or process.poll() is not None,
        "the run has staged something",
    )
    process.send_signal(signal.SIGHUP)
    assert finish(process)[0] == 0
    assert (out / "_forebay" / "manifest.json").exists()


def test_a_file_beyond_the_limit_of_the_process_is_an_error(tmp_path: Path) -> None:
    job = _large_job(tmp_path)
    limited = f"ulimit -f 64; exec {BINARY} run {job}"
    process = subprocess.Popen(
        ["bash", "-c", limited],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    status, _, err = finish(process)
    assert status == 1
    assert "the file is too large" in err
    assert not (tmp_path / "out").exists()


def test_a_result_that_nobody_can_read_is_committed_all_the_same(tmp_path: Path) -> None:
    job = _large_job(tmp_path, copies=1)
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(
            [str(BINARY), "run", str(job)], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True
        )
        _, err = process.communicate()
    assert process.returncode == 0
    assert "warning: the job is committed" in err
    assert "manifest.json), but cannot write to standard output" in err


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("FOREBAY_MEMORY_LIMIT", "abc"),
        ("FOREBAY_MEMORY_LIMIT", "-1"),
        ("FOREBAY_MEMORY_LIMIT", "0"),
        ("FOREBAY_PROGRESS_SECONDS", "often"),
    ],
)
def test_variables_that_say_nothing_are_refused(tmp_path: Path, variable: str, value: str) -> None:
    job = _large_job(tmp_path, copies=1)
    status, _, err = forebay("run", job, **{variable: value})
    assert status == 2
    assert f'the variable {variable} is "{value}"' in err
    assert not (tmp_path / "out").exists()
    assert forebay("run", job, **{variable: ""})[0] == 0


def test_what_an_overwrite_replaces_is_said(tmp_path: Path) -> None:
    job = _large_job(tmp_path, copies=1)
    plan = json.loads(job.read_text())
    plan["sink"]["parquet"] = {"uri": str(tmp_path / "out"), "mode": "overwrite"}
    job.write_text(json.dumps(plan))
    assert "replaces" not in forebay("explain", job)[1]
    assert "replaced" not in forebay("run", job)[1]
    assert "; replaces 1 files)" in forebay("explain", job)[1]
    assert "(replaced 1 files)" in forebay("run", job)[1]
    assert json.loads(forebay("run", job, "--json")[1])["files_replaced"] == 1


@pytest.mark.parametrize("command", ["explain", "run"])
def test_targets_that_cannot_be_are_refused_by_both_commands(tmp_path: Path, command: str) -> None:
    source = numbered(tmp_path / "in" / "n.parquet", 10)
    for uri, what in [
        ("http://x/y", "unknown scheme"),
        (str(tmp_path / "*.parquet"), "is a pattern"),
        (str(tmp_path / "in"), "holds its source"),
        (str(ROOT), "the folder that this runs in"),
    ]:
        job = tmp_path / "job.yaml"
        sink = {"uri": uri, "mode": "overwrite"}
        plan = {"source": {"parquet": source}, "sink": {"parquet": sink}}
        job.write_text(json.dumps(plan))
        status, printed, err = forebay(command, job)
        assert (status, printed) == (2, "")
        assert what in err
        assert "job.yaml:1:" in err
        assert "sink.parquet.uri" in err


def test_two_runs_into_one_target_commit_once(tmp_path: Path) -> None:
    """S7: unique names, one commit, readers see all of one run or all of the other."""
    job = _large_job(tmp_path, copies=3)
    processes = [start_forebay("run", job, "--json") for _ in range(3)]
    results = [finish(process) for process in processes]
    done = [result for result in results if result[0] == 0]
    assert len(done) == 1, results
    for status, printed, _ in results:
        if status != 0:
            assert status == 1
            error = json.loads(printed)["error"]
            assert error["kind"] in ("already_exists", "changed")
    kept = json.loads(done[0][1])["rows_kept"]
    assert fb.read_parquet(tmp_path / "out").count() == kept
    assert pq.read_table(tmp_path / "out").num_rows == kept
