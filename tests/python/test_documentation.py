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
from support import DEADLINE, ROOT, child, finish

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
