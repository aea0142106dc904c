"""Bad input: every wrong thing a user gives, through Python and through the command line.

Each is one error in the user's words: it names the thing and the way out, fits a screen, shows no
traceback of ours, and leaves no output behind.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image
from support import BINARY, finish, forebay, in_order, numbered, start_forebay, write

import forebay as fb

pytestmark = pytest.mark.usefixtures("binary")


def _good(folder: Path) -> str:
    return write(
        folder / "good.parquet",
        {"label": list(range(100)), "name": [f"n{i}" for i in range(100)]},
        row_group_size=10,
    )


# Sources: what is made in an empty folder (it gives the URI), the exceptions, words in the text.

SOURCES: dict[str, tuple[Callable[[Path], str], type[fb.ForebayError], type[Exception], list[str]]]


def _missing(folder: Path) -> str:
    _good(folder)
    return str(folder / "god.parquet")


def _empty_glob(folder: Path) -> str:
    _good(folder)
    return str(folder / "*.csv")


def _empty_folder(folder: Path) -> str:
    (folder / "empty").mkdir()
    return str(folder / "empty")


def _folder_of_other_files(folder: Path) -> str:
    (folder / "f").mkdir()
    (folder / "f" / "readme.txt").write_text("hello")
    return str(folder / "f")


def _not_parquet(folder: Path) -> str:
    (folder / "text.parquet").write_text("id,name\n1,x\n" * 100)
    return str(folder / "text.parquet")


def _zero_bytes(folder: Path) -> str:
    (folder / "zero.parquet").touch()
    return str(folder / "zero.parquet")


def _truncated(folder: Path) -> str:
    path = Path(_good(folder))
    path.with_name("cut.parquet").write_bytes(path.read_bytes()[:-100])
    return str(path.with_name("cut.parquet"))


def _mixed(folder: Path) -> str:
    write(folder / "m" / "a.parquet", {"label": [1]})
    write(folder / "m" / "b.parquet", {"label": ["x"]})
    return str(folder / "m")


def _unknown_scheme(_: Path) -> str:
    return "gopher://host/data"


SOURCES = {
    "missing": (_missing, fb.NotFoundError, FileNotFoundError, ["god.parquet", "good.parquet"]),
    "empty glob": (_empty_glob, fb.NotFoundError, FileNotFoundError, ["*.csv", "hint"]),
    "empty folder": (_empty_folder, fb.NotFoundError, FileNotFoundError, ["empty", ".parquet"]),
    "other files": (_folder_of_other_files, fb.NotFoundError, FileNotFoundError, [".parquet"]),
    "not parquet": (_not_parquet, fb.CorruptDataError, ValueError, ["text.parquet", "not a Parq"]),
    "zero bytes": (_zero_bytes, fb.CorruptDataError, ValueError, ["zero.parquet", "0 bytes"]),
    "truncated": (_truncated, fb.CorruptDataError, ValueError, ["cut.parquet", "truncated"]),
    "mixed": (_mixed, fb.SchemaError, TypeError, ["label", "a.parquet", "b.parquet", "hint"]),
    "scheme": (_unknown_scheme, fb.ForebayError, Exception, ["gopher", "s3"]),
}


def _one_screen(text: str) -> None:
    lines = text.strip().splitlines()
    assert 0 < len(lines) <= 12, text
    for ours in ("panicked", "RUST_BACKTRACE", "Traceback", ".rs:", "unwrap", "stack backtrace"):
        assert ours not in text


@pytest.mark.parametrize("name", SOURCES)
def test_sources_in_python(tmp_path: Path, name: str) -> None:
    make, kind, builtin, words = SOURCES[name]
    with pytest.raises(kind) as caught:
        fb.read_parquet(make(tmp_path)).count()
    assert isinstance(caught.value, builtin)
    assert isinstance(caught.value, fb.ForebayError)
    text = str(caught.value)
    _one_screen(text)
    for word in words:
        assert word in text


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("as_json", [False, True])
def test_sources_on_the_command_line(tmp_path: Path, name: str, as_json: bool) -> None:
    make, kind, _, words = SOURCES[name]
    source = make(tmp_path)
    job = tmp_path / "job.yaml"
    out = tmp_path / "out"
    job.write_text(json.dumps({"source": {"parquet": source}, "sink": {"parquet": str(out)}}))
    flags = ["--json"] if as_json else []
    for command in (["run", job], ["explain", job], ["inspect", source]):
        status, printed, err = forebay(*command, *flags)
        assert status in (1, 2)
        if as_json:
            assert err == ""
            error = json.loads(printed)["error"]
            assert kind is fb.ForebayError or error["kind"] == _kind_of(kind)
            text = error["report"]
        else:
            assert printed == ""
            text = err
        _one_screen(text)
        for word in words:
            assert word in text
    assert not out.exists()


def _kind_of(exception: type[fb.ForebayError]) -> str:
    from forebay._errors import _CLASSES

    return next(kind for kind, name in _CLASSES.items() if name is exception)


def test_a_path_with_a_nul_byte() -> None:
    with pytest.raises(fb.InvalidInputError, match="NUL byte"):
        fb.read_parquet("data/a\0b.parquet")
    with pytest.raises(fb.InvalidInputError, match="NUL byte"):
        fb.read_parquet("data/a\0b/*.parquet")


def test_an_unreadable_file(tmp_path: Path) -> None:
    path = Path(_good(tmp_path))
    path.chmod(0)
    if os.access(path, os.R_OK):
        # The superuser reads everything; a process without that right is needed.
        pytest.skip("this user may read every file")
    with pytest.raises(fb.PermissionDeniedError, match=r"good\.parquet"):
        fb.read_parquet(path)


def test_an_unreadable_file_as_another_user(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs the right to become another user")
    path = Path(_good(tmp_path))
    path.chmod(0)
    for folder in [tmp_path, *tmp_path.parents][:3]:
        folder.chmod(0o755)
    import subprocess

    binary = tmp_path / "forebay"
    shutil.copy(BINARY, binary)
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    result = subprocess.run(
        [*user, str(binary), "inspect", str(path)], capture_output=True, text=True, check=False
    )
    if "good.parquet" not in result.stderr:
        pytest.skip(f"another user cannot reach the folder: {result.stderr}")
    assert result.returncode == 1
    assert "permission" in result.stderr.lower()
    _one_screen(result.stderr)
    # A folder that may be listed and not entered, and one that may not even be listed.
    shut = tmp_path / "shut"
    shut.mkdir()
    for mode in (0o744, 0):
        shut.chmod(mode)
        result = subprocess.run(
            [*user, str(binary), "inspect", str(shut)], capture_output=True, text=True, check=False
        )
        assert f"may not read {shut}\n" in result.stderr


def test_a_file_that_changed_since_it_was_listed(tmp_path: Path) -> None:
    path = _good(tmp_path)
    dataset = fb.read_parquet(path)
    write(Path(path), {"label": list(range(50)), "name": ["x"] * 50}, row_group_size=10)
    with pytest.raises(fb.ChangedError, match=r"good\.parquet"):
        in_order(dataset)


def test_a_pipe_in_the_place_of_a_listed_file(tmp_path: Path) -> None:
    path = Path(_good(tmp_path))
    dataset = fb.read_parquet(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(fb.ChangedError, match=r"good\.parquet"):
        in_order(dataset)
    with pytest.raises(fb.InvalidInputError, match="neither a file nor a folder"):
        fb.read_parquet(path)
    with pytest.raises(fb.NotFoundError, match="no Parquet files, only good"):
        fb.read_parquet(tmp_path)


def test_a_link_to_nowhere(tmp_path: Path) -> None:
    (tmp_path / "l.parquet").symlink_to("nowhere.parquet")
    for uri in (tmp_path, tmp_path / "l.parquet", tmp_path / "*.parquet"):
        with pytest.raises(fb.NotFoundError, match="is a link to a file that does not exist"):
            fb.read_parquet(uri)


def test_job_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe")
    for path, hint in [
        (tmp_path, "it is a folder"),
        (tmp_path / "bytes.yaml", "not text in UTF-8"),
        (tmp_path / "none.yaml", "give the path of a YAML file"),
    ]:
        status, _, err = forebay("explain", path)
        assert status == 2
        assert hint in err


def test_endings_in_capitals_are_read(tmp_path: Path) -> None:
    numbered(tmp_path / "A.PARQUET", 10)
    assert fb.read_parquet(tmp_path).count() == 10


# Expressions and names: a step, words in the text, words in the hint.

STEPS = {
    "unknown column": ({"filter": "lable < 3"}, ["lable"], ["label"]),
    "syntax": ({"filter": "label <"}, ["syntax"], []),
    "stray quote": ({"filter": "name = 'x"}, ["syntax"], []),
    "statement": ({"filter": "DELETE FROM x"}, [], []),
    "two statements": ({"filter": "label < 3; DROP TABLE x"}, [";"], []),
    "subquery": ({"filter": "label IN (SELECT 1)"}, [], []),
    "not boolean": ({"filter": "label + 1"}, ["boolean"], ["label + 1 > 0"]),
    "unknown function": ({"filter": "uper(name) = 'A'"}, ["uper"], ["upper"]),
    "random": ({"filter": "random() < 0.1"}, ["random"], ["reproducible"]),
    "now": ({"with_column": {"name": "t", "expr": "now()"}}, ["now"], ["reproducible"]),
    "aggregate": ({"filter": "sum(label) > 3"}, ["sum"], []),
    "types": ({"filter": "label < 'abc' AND name > 7.5e"}, [], []),
    "select": ({"select": ["lable"]}, ["lable"], ["label"]),
    "drop": ({"drop": ["lable"]}, ["lable"], ["label"]),
    "rename": ({"rename": {"lable": "x"}}, ["lable"], ["label"]),
    "stack": ({"stack": {"columns": ["label", "nam"], "into": "x"}}, ["nam"], ["name"]),
    "stack of text": ({"stack": {"columns": ["label", "name"], "into": "x"}}, ["name"], []),
    "image of numbers": ({"map_image": {"column": "label"}}, ["label"], []),
    "limit": ({"limit": -1}, ["-1"], []),
}


def _through_python(dataset: fb.Dataset, step: dict) -> None:
    ((word, value),) = step.items()
    if word in ("with_column", "stack", "map_image"):
        dataset = getattr(dataset, word)(**value)
    else:
        dataset = getattr(dataset, word)(value)
    in_order(dataset)


@pytest.mark.parametrize("name", STEPS)
def test_steps_in_python(tmp_path: Path, name: str) -> None:
    step, words, hints = STEPS[name]
    dataset = fb.read_parquet(_good(tmp_path))
    with pytest.raises(fb.ForebayError) as caught:
        _through_python(dataset, step)
    error = caught.value
    assert isinstance(error, (ValueError, TypeError, NotImplementedError))
    assert not isinstance(error, fb.InternalError)
    _one_screen(str(error))
    for word in words:
        assert word in str(error)
    for word in hints:
        assert word in error.hint


GONE = {
    "renamed": ({"rename": {"label": "y"}}, "label > 1", "renames"),
    "dropped": ({"drop": ["label"]}, "label > 1", "drop"),
    "not selected": ({"select": ["name"]}, "label > 1", "select"),
    "a tensor": ({"stack": {"columns": ["label"], "into": "x"}}, "x > 1", "tensor"),
}


@pytest.mark.parametrize("name", GONE)
def test_an_expression_over_a_column_that_an_earlier_step_took(tmp_path: Path, name: str) -> None:
    first, expression, word = GONE[name]
    plan = [first, {"filter": expression}]
    job = tmp_path / "job.yaml"
    job.write_text(
        f"source: {{ parquet: {_good(tmp_path)} }}\nsteps: {json.dumps(plan)}\n"
        f"sink: {{ parquet: {tmp_path / 'out'} }}\n"
    )
    status, _, err = forebay("run", job)
    assert status == 2
    assert "there is no column" in err
    (hint,) = [line for line in err.splitlines() if "hint:" in line]
    assert word in hint
    assert "steps[0]" in hint


@pytest.mark.parametrize("name", STEPS)
def test_steps_on_the_command_line(tmp_path: Path, name: str) -> None:
    step, words, hints = STEPS[name]
    job = tmp_path / "job.yaml"
    out = tmp_path / "out"
    job.write_text(
        f"source: {{ parquet: {_good(tmp_path)} }}\n"
        f"steps:\n  - {json.dumps(step)}\n"
        f"sink: {{ parquet: {out} }}\n"
    )
    status, printed, err = forebay("run", job)
    assert (status, printed) == (2, "") or status == 1
    _one_screen(err)
    for word in [*words, *hints]:
        assert word in err
    if status == 2:
        assert f"{job}:3:" in err, "the line of the job file"
    status, printed, err = forebay("run", job, "--json")
    assert status in (1, 2)
    assert err == ""
    assert "steps[0]" in json.loads(printed)["error"]["report"] or status == 1
    assert not out.exists()


JOBS = {
    "not yaml": ("source: [", ":1:", []),
    "empty": ("", ":1:", ["source"]),
    "a list": ("- filter: x\n", ":1:", ["mapping"]),
    "unknown key": ("sauce: { parquet: x }\n", ":1:1", ["source"]),
    "unknown source": ("source: { parket: x }\n", ":1:", ["parquet"]),
    "unknown source key": ("source: { parquet: { uri: x, colums: [a] } }\n", ":1:", ["columns"]),
    "unknown step": ("source: { parquet: GOOD }\nsteps:\n  - fliter: x\n", ":3:", ["filter"]),
    "number for a text": ("source: { parquet: { uri: 5 } }\n", ":1:", ["5"]),
    "text for a number": ("source: { parquet: GOOD }\nsteps:\n  - limit: lots\n", ":3:", ["lots"]),
    "text for a list": ("source: { parquet: GOOD }\nsteps: filter\n", ":2:", ["list"]),
    "bad mode": (
        "source: { parquet: GOOD }\nsink: { parquet: { uri: OUT, mode: replace } }\n",
        ":2:",
        ["overwrite", "append"],
    ),
    "bad size": (
        "source: { parquet: GOOD }\nsink:\n  parquet:\n    uri: OUT\n    file_bytes: big\n",
        ":5:",
        ["big"],
    ),
    "bad operator": (
        "source: { parquet: GOOD }\nsteps:\n  - map_image:\n      column: name\n"
        "      ops: [resise: 3]\n",
        ":5:",
        ["resize"],
    ),
    "duplicate key": ("source: { parquet: GOOD }\nsource: { parquet: GOOD }\n", ":2:", ["source"]),
    "no such column of the source": (
        "source:\n  parquet:\n    uri: GOOD\n    columns: [name, lable]\nsink: { parquet: OUT }\n",
        ":4:",
        ["label", "columns[1]"],
    ),
    "an operator of Python": (
        "source: { parquet: GOOD }\nsteps:\n  - filter: label > 1 && label < 5\n",
        ":3:",
        ["write AND", "^^"],
    ),
    "no sink": ("source: { parquet: GOOD }\n", "job.yaml", ["sink"]),
}


@pytest.mark.parametrize("name", JOBS)
def test_job_files(tmp_path: Path, name: str) -> None:
    text, place, words = JOBS[name]
    out = tmp_path / "out"
    job = tmp_path / "job.yaml"
    job.write_text(text.replace("GOOD", _good(tmp_path)).replace("OUT", str(out)))
    status, printed, err = forebay("run", job)
    assert (status, printed) == (2, "")
    _one_screen(err)
    assert str(job) in err
    for word in [place, *words]:
        assert word in err
    status, printed, err = forebay("run", job, "--json")
    assert (status, err) == (2, "")
    assert json.loads(printed)["error"]["kind"] == "invalid_input"
    assert not out.exists()


@pytest.mark.parametrize(
    "arguments",
    [["frob"], ["run"], ["run", "a.yaml", "--thraeds", "2"], ["run", "a.yaml", "--threads", "x"]],
    ids=" ".join,
)
def test_wrong_usage_of_the_command_line(arguments: list[str]) -> None:
    status, printed, err = forebay(*arguments)
    assert (status, printed) == (2, "")
    assert "usage" in err.lower() or "--help" in err
    status, printed, err = forebay(*arguments, "--json")
    assert (status, err) == (2, "")
    assert json.loads(printed)["error"]["kind"] == "invalid_input"


def test_a_job_file_that_is_not_there(tmp_path: Path) -> None:
    status, printed, err = forebay("run", tmp_path / "none.yaml")
    assert (status, printed) == (2, "")
    assert "none.yaml" in err
    _one_screen(err)


ARGUMENTS = [
    ({}, "batch_size"),
    ({"batch_size": 0}, "batch_size"),
    ({"batch_size": -4}, "batch_size"),
    ({"batch_size": 2.5}, "batch_size"),
    ({"batch_size": "8"}, "batch_size"),
    ({"batch_size": 8, "global_batch_size": 8}, "global_batch_size"),
    ({"batch_size": 8, "shuffle": "windows"}, "window"),
    ({"batch_size": 8, "shuffle": True}, "shuffle"),
    ({"batch_size": 8, "seed": -1}, "seed"),
    ({"batch_size": 8, "rank": 2}, "world_size"),
    ({"batch_size": 8, "rank": 2, "world_size": 2}, "rank"),
    ({"global_batch_size": 8, "rank": 0, "world_size": 3}, "global_batch_size"),
    ({"batch_size": 8, "epoch_end": "repeat"}, "epoch_end"),
    ({"batch_size": 8, "lanes": 0}, "lanes"),
    ({"batch_size": 8, "window": 0}, "window"),
    ({"batch_size": 8, "fill": "zero"}, "fill"),
    ({"batch_size": 8, "lists": "dense"}, "lists"),
    ({"batch_size": 8, "format": "jax"}, "torch"),
    ({"batch_size": 8, "num_threads": 0}, "num_threads"),
    ({"batch_size": 8, "memory_limit": "lots"}, "memory_limit"),
    ({"batch_size": 8, "memory_limit": 0}, "memory_limit"),
    ({"batch_size": 8, "prefetch": -1}, "prefetch"),
]


@pytest.mark.parametrize(("arguments", "word"), ARGUMENTS, ids=lambda v: str(v)[:60])
def test_loader_arguments(tmp_path: Path, arguments: dict, word: str) -> None:
    dataset = fb.read_parquet(_good(tmp_path), columns=["label"])
    with pytest.raises(fb.InvalidInputError) as caught:
        dataset.loader(**arguments)
    assert isinstance(caught.value, ValueError)
    assert caught.value.place.startswith("loader(")
    assert word in str(caught.value)
    _one_screen(str(caught.value))


def test_a_uri_without_a_path() -> None:
    with pytest.raises(fb.InvalidInputError, match="names no path"):
        fb.read_parquet("file://")


@pytest.mark.parametrize("uri", [None, 5, b"x.parquet", ["a", 5], {"a": 1}])
def test_a_uri_of_the_wrong_type(uri: object) -> None:
    with pytest.raises(TypeError, match="expected a path"):
        fb.read_parquet(uri)  # type: ignore[arg-type]


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(fb.InvalidInputError, match="lable") as caught:
        fb.read_parquet(_good(tmp_path), columns=["lable"])
    assert "label" in caught.value.hint
    assert caught.value.place == "source.parquet.columns[0]"


def test_a_snapshot_that_is_not_there(tmp_path: Path) -> None:
    fb.read_parquet(_good(tmp_path)).snapshot().save(tmp_path / "good.snapshot")
    for name, word in [("god.snapshot", "good.snapshot"), ("none/x", "does not")]:
        with pytest.raises(fb.NotFoundError, match=name) as caught:
            fb.read_snapshot(tmp_path / name)
        assert word in caught.value.hint


def test_values_that_cannot_be_computed(tmp_path: Path) -> None:
    path = _good(tmp_path)
    dataset = fb.read_parquet(path)
    for expr in ("1 / (label - 55)", "CAST(name AS INT)"):
        with pytest.raises(fb.DataError) as caught:
            in_order(dataset.with_column("x", expr))
        error = caught.value
        assert isinstance(error, ValueError)
        assert error.file == path
        assert error.row == (55 if "55" in expr else 0)
        assert error.place == "steps[0].with_column"


def test_image_operators(tmp_path: Path) -> None:
    dataset = fb.read_parquet(write(tmp_path / "i.parquet", {"image": pa.array([b"x"])}))
    with pytest.raises(TypeError, match=r"fb\.Resize"):
        dataset.map_image("image", [lambda image: image])  # type: ignore[list-item]
    for make, word in [
        (lambda: dataset.map_image("image", [fb.Resize(0)]), "resize"),
        (lambda: dataset.map_image("image", [fb.RandomHorizontalFlip(1.5)]), "1.5"),
        (lambda: dataset.map_image("image", [fb.Normalize([0.5], [0.0])]), "std"),
        (lambda: dataset.map_image("image", mode="CMYK"), "CMYK"),
        (lambda: dataset.map_image("image", dtype="int3"), "int3"),
        (lambda: dataset.map_image("image", layout="NCHW"), "NCHW"),
        (lambda: dataset.map_image("image", on_error="ignore"), "ignore"),
        (lambda: dataset.map_image("imag"), "imag"),
    ]:
        with pytest.raises(fb.InvalidInputError, match=word):
            make()


@pytest.mark.parametrize("content", [b"", b"not a picture", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"])
def test_corrupt_images(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path / "i.parquet", {"image": [content], "id": [0]})
    dataset = fb.read_parquet(path).map_image("image", [fb.Resize([4, 4])], mode="RGB")
    with pytest.raises((fb.CorruptDataError, fb.UnsupportedError)) as caught:
        in_order(dataset)
    error = caught.value
    assert (error.file, error.row, error.column) == (path, 0, "image")
    assert error.hint
    _one_screen(str(error))
    job = tmp_path / "job.yaml"
    job.write_text(
        f"source: {{ parquet: {path} }}\n"
        "steps:\n  - map_image: { column: image, ops: [resize: [4, 4]], mode: RGB }\n"
        f"sink: {{ parquet: {tmp_path}/out }}\n"
    )
    status, printed, err = forebay("run", job)
    assert (status, printed) == (1, "")
    for word in (path, "row 0", "column image"):
        assert word in err
    _one_screen(err)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("size", [4, [4, 4]])
@pytest.mark.parametrize("mode", [None, "RGB"])
def test_of_several_bad_images_the_first_is_named(
    tmp_path: Path, size: int | list[int], mode: str | None
) -> None:
    """Also where its header is whole and that of the other is not, on any number of threads."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(buffer, "PNG")
    good, junk = buffer.getvalue(), b"not a picture"
    images = [good, good[: len(good) // 2], junk, good, junk]
    path = write(tmp_path / "i.parquet", {"a": images, "b": [good, junk, *images[2:]]})
    for columns, first in ((["a"], "a"), (["a", "b"], "a"), (["b", "a"], "b")):
        dataset = fb.read_parquet(path, columns=columns)
        for column in columns:
            dataset = dataset.map_image(column, [fb.Resize(size)], mode=mode)
        for threads in (1, 4):
            with pytest.raises(fb.CorruptDataError) as caught:
                in_order(dataset, num_threads=threads)
            assert (caught.value.row, caught.value.column) == (1, first)


def test_a_target_that_cannot_be_written(tmp_path: Path) -> None:
    dataset = fb.read_parquet(_good(tmp_path))
    with pytest.raises(fb.InvalidInputError, match="is a file"):
        dataset.write_parquet(tmp_path / "good.parquet")
    with pytest.raises(fb.ForebayError):
        dataset.write_parquet(tmp_path / "good.parquet" / "below")
    with pytest.raises(fb.StorageError, match="cannot create /proc/nope") as caught:
        dataset.write_parquet("/proc/nope")
    assert "write elsewhere" in caught.value.hint
    assert fb.read_parquet(tmp_path / "good.parquet").count() == 100


def test_output_into_a_closed_pipe_is_no_panic(tmp_path: Path) -> None:
    path = numbered(tmp_path / "n.parquet", 50_000, row_group=10)
    process = start_forebay("inspect", path, "--json")
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    status, _, err = finish(process)
    assert "panicked" not in err
    assert status != 101
