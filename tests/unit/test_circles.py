"""No module and no package of `dsf` imports itself by way of others, wherever the import stands in a file.

An import within a function or under TYPE_CHECKING counts, too: it hides a circle and does not remove it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_Graph = Mapping[str, set[str]]


def _modules(root: Path) -> dict[str, Path]:
    files = (file for folder in ("dsf", "packages", "demo") for file in (root / folder).rglob("*.py"))
    return {_name(file.relative_to(root)): file for file in files}


def _name(file: Path) -> str:
    parts = file.with_suffix("").parts
    # Below `packages` and `demo`, the module is that of a distribution of its own.
    parts = parts[parts.index("dsf") :]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(file: Path, known: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in known else node.module


def _graph(root: Path) -> _Graph:
    known = _modules(root)
    return {
        name: {other for other in _imported(file, known) if other in known} - {name} for name, file in known.items()
    }


def _children(parent: str, graph: _Graph) -> _Graph:
    """What the direct children of a package import of each other, each with all that is below it."""
    start = parent + "."
    found: dict[str, set[str]] = {}
    for name, others in graph.items():
        if name.startswith(start):
            child = name.removeprefix(start).partition(".")[0]
            below = {other.removeprefix(start).partition(".")[0] for other in others if other.startswith(start)}
            found.setdefault(child, set()).update(below - {child})
    return found


def _circle(graph: _Graph) -> str:
    """A circle such as `a -> b -> a`; empty when there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        # Each is imported by the one after it.
        return " -> ".join(reversed(error.args[1]))
    return ""


@pytest.fixture(scope="module")
def ours() -> _Graph:
    """What our modules import; read once, and not by each test process that only collects."""
    return _graph(_ROOT)


def test_no_module_imports_itself_by_way_of_others(ours: _Graph) -> None:
    assert _circle(ours) == ""


@pytest.mark.parametrize("package", sorted({name.rpartition(".")[0] for name in _modules(_ROOT)} - {""}))
def test_no_package_imports_itself_by_way_of_its_neighbours(package: str, ours: _Graph) -> None:
    assert _circle(_children(package, ours)) == ""


def test_circles_are_found(tmp_path: Path) -> None:
    texts = {
        "a/one.py": "def f():\n    from dsf.b import two\n",
        "b/two.py": "import dsf.c.three\n",
        "c/three.py": "from dsf.a import four\n",
        "a/four.py": "",
    }
    for name, text in texts.items():
        file = tmp_path / "dsf" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    graph = _graph(tmp_path)
    assert _circle(graph) == ""
    assert set(_circle(_children("dsf", graph)).split(" -> ")) == {"a", "b", "c"}
    (tmp_path / "dsf" / "a" / "four.py").write_text("from dsf.a.one import f\n")
    assert "dsf.b.two" in _circle(_graph(tmp_path))
