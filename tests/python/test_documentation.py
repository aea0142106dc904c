"""What the documentation says is true: docstrings, README, stubs, the public names."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
from sidecars import Process
from support import DEADLINE, ROOT, child, finish, forebay

import forebay as fb
from forebay import _forebay

MODULES = ["forebay", *(f"forebay.{m.name}" for m in pkgutil.iter_modules(fb.__path__))]


@pytest.mark.parametrize("name", [m for m in MODULES if not m.endswith("_forebay")])
def test_examples_in_docstrings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    flags = doctest.NORMALIZE_WHITESPACE
    result = doctest.testmod(importlib.import_module(name), optionflags=flags)
    assert result.failed == 0


def test_public_names_are_sorted_documented_and_there() -> None:
    assert fb.__all__ == sorted(fb.__all__)
    for name in fb.__all__:
        value = getattr(fb, name)
        assert name == "__version__" or (value.__doc__ or "").strip(), name
    for name, value in vars(fb).items():
        if inspect.isclass(value) and not name.startswith("_"):
            assert name in fb.__all__


def test_every_public_method_has_a_docstring_and_types() -> None:
    for name in fb.__all__:
        cls = getattr(fb, name)
        if not inspect.isclass(cls) or cls.__module__ == "builtins":
            continue
        for method, function in vars(cls).items():
            if method.startswith("_") or not inspect.isfunction(function):
                continue
            assert function.__doc__, f"{name}.{method}"
            assert "return" in function.__annotations__, f"{name}.{method}"


def test_the_numbers_of_the_page_on_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the example writes a file
    text = (ROOT / "docs" / "order.md").read_text()
    blocks = re.findall(r"^```pycon\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "order.md", None, 0)
    assert len(test.examples) > 10
    assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test).failed == 0


def _stub() -> ast.Module:
    return ast.parse((ROOT / "python" / "forebay" / "_forebay.pyi").read_text())


def test_the_stub_names_what_the_native_module_has() -> None:
    stub = {
        node.name: node
        for node in _stub().body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef))
    }
    native = {
        name: value
        for name, value in vars(_forebay).items()
        if not name.startswith("_") and name != "forebay"
    }
    assert set(stub) == set(native)
    for name, node in stub.items():
        value = native[name]
        if isinstance(node, ast.FunctionDef):
            assert _parameters(node) == list(inspect.signature(value).parameters), name
            continue
        methods = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
        members = {m for m in vars(value) if not m.startswith("__")}
        assert {m for m in methods if not m.startswith("__")} == members, name
        for method, declared in methods.items():
            assert hasattr(value, method), f"{name}.{method}"
            decorated = {d.id for d in declared.decorator_list if isinstance(d, ast.Name)}
            real = inspect.getattr_static(value, method)
            assert ("property" in decorated) == inspect.isgetsetdescriptor(real), f"{name}.{method}"
            if "property" not in decorated and not method.startswith("__"):
                names = [p for p in inspect.signature(real).parameters if p != "self"]
                assert [p for p in _parameters(declared) if p != "self"] == names, (
                    f"{name}.{method}"
                )


def _parameters(node: ast.FunctionDef) -> list[str]:
    arguments = node.args
    return [a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]]


def test_the_package_is_typed() -> None:
    assert (Path(fb.__file__).parent / "py.typed").exists() or (
        ROOT / "python" / "forebay" / "py.typed"
    ).exists()


def _readme_example() -> str:
    """The first block of Python in the README's third section."""
    text = (ROOT / "README.md").read_text()
    sections = re.split(r"^## ", text, flags=re.MULTILINE)
    block = re.search(r"^```python\n(.*?)^```", sections[3], flags=re.MULTILINE | re.DOTALL)
    assert block, "the README's third section has no block of Python"
    return block.group(1)


def test_the_readme_example_runs() -> None:
    code = _readme_example()
    assert "import forebay" in code
    status, out, err = finish(child(code), timeout=2 * DEADLINE)
    assert status == 0, f"{out}\n{err}"


# `ray_train.py` has tests of its own: it needs a launcher.
EXAMPLES = [p for p in sorted((ROOT / "examples").glob("*.py")) if p.name != "ray_train.py"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_the_python_examples_run(path: Path) -> None:
    status, out, err = finish(child(path.read_text()), timeout=2 * DEADLINE)
    assert status == 0, err
    assert "steps of" in out


def test_the_client_of_the_page_on_the_protocol_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "protocol.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    told = text[text.index("What it printed") :]
    printed = re.search(r"^```text\n(.*?)^```", told, flags=re.MULTILINE | re.DOTALL)
    assert printed
    sidecar = Process(tmp_path / "s")
    try:
        code = blocks[0].replace("/tmp/forebay.sock", str(sidecar.socket))
        status, out, err = finish(child(code))
        assert status == 0, err
        sidecar.is_quiet()
    finally:
        assert sidecar.stop() == 0
    assert _told(out) == _told(printed.group(1))


def _told(transcript: str) -> list[str]:
    """A transcript without what differs between runs: states, paths, and segments."""
    states = re.sub(r'"(state|next|again)":("(\\.|[^"\\])*"|S\d)', r'"\1":S', transcript)
    paths = re.sub(r'"uri\\": \\"[^"]*/examples', r'"uri\\": \\"/examples', states)
    # Whether the second batch comes in the memory of the first depends on who is faster.
    fresh = re.sub(r'"fresh":\w+|\+ \d descriptors', "", paths)
    segments = re.sub(r'"segment":\d+', '"segment":N', fresh)
    return [line.rstrip() for line in segments.splitlines()]


@pytest.mark.parametrize("command", ["sidecar", "top"])
def test_every_option_of_the_sidecar_is_documented(command: str) -> None:
    status, out, _ = forebay(command, "--help")
    assert status == 0
    options = set(re.findall(r"--[a-z][a-z-]*", out)) - {"--help"}
    pages = {"sidecar": ["sidecar.md", "cli.md"], "top": ["cli.md"]}
    for page in pages[command]:
        documented = (ROOT / "docs" / page).read_text()
        assert not {o for o in options if f"`{o}" not in documented}


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), target
        if anchor:
            assert anchor in _anchors(path.read_text()), target


def _anchors(text: str) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", h).lower() for h in headings)
    return {re.sub(r"[^\w\- ]", "", h).strip().replace(" ", "-") for h in plain}
