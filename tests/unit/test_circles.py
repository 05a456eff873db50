"""Modules and packages of `dsf` do not import themselves through others, wherever the import is in a file.

An import within a function or under TYPE_CHECKING counts, too: it hides a circle and does not remove it.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_Graph = Mapping[str, set[str]]


def _modules(root: Path) -> dict[str, Path]:
    """Return modules of the framework, and those that other distributions add to its package."""
    places = [root, root / "demo", *(root / "packages").glob("*")]
    return {_name(file.relative_to(place)): file for place in places for file in (place / "dsf").rglob("*.py")}


def _name(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _iterate_imports(file: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    for node in _find_imports(file.read_text(encoding="utf-8")):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in modules else node.module


@functools.cache
def _find_imports(source: str) -> list[ast.Import | ast.ImportFrom]:
    """Return the import statements of a module; several tests read the same modules."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]


def _graph(root: Path) -> _Graph:
    modules = _modules(root)
    return {
        name: {other for other in _iterate_imports(file, modules) if other in modules} - {name}
        for name, file in modules.items()
    }


def _children(parent: str, graph: _Graph) -> _Graph:
    """Return the imports between direct children of a package, each with all modules below it."""
    start = parent + "."
    imports_by_child: dict[str, set[str]] = {}
    for name, imported in graph.items():
        if name.startswith(start):
            child = name.removeprefix(start).partition(".")[0]
            below = {other.removeprefix(start).partition(".")[0] for other in imported if other.startswith(start)}
            imports_by_child.setdefault(child, set()).update(below - {child})
    return imports_by_child


def _find_circle(graph: _Graph) -> str:
    """Return a circle such as `a -> b -> a`, or an empty text."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        # Each module is imported by the next one.
        return " -> ".join(reversed(error.args[1]))
    return ""


@pytest.fixture(scope="module")
def ours() -> _Graph:
    """Return the imports of this project's modules; read once, and not by processes that only collect tests."""
    return _graph(_ROOT)


def test_no_module_imports_itself_through_others(ours: _Graph) -> None:
    assert _find_circle(ours) == ""


@pytest.mark.parametrize("package", sorted({name.rpartition(".")[0] for name in _modules(_ROOT)} - {""}))
def test_no_package_imports_itself_through_its_neighbours(package: str, ours: _Graph) -> None:
    assert _find_circle(_children(package, ours)) == ""


def test_framework_imports_no_module_of_other_distributions(ours: _Graph) -> None:
    """The framework finds them by entry points and names, and names the package to install if they are absent."""
    added = {name for name, file in _modules(_ROOT).items() if (_ROOT / "dsf") not in file.parents}
    assert {"dsf.otlp", "dsf.optimizer", "dsf.scorer", "dsf.up"} <= added
    assert {name: imported & added for name, imported in ours.items() if name not in added and imported & added} == {}


@pytest.mark.parametrize("side", ["backends", "cli", "demo", "fleetmetrics", "fleet", "hub", "results", "up", "web"])
def test_sources_import_no_module_of_the_hub(side: str, ours: _Graph) -> None:
    files = _modules(_ROOT)
    names = [name for name, file in files.items() if (_ROOT / "packages" / "dsf-sources") in file.parents]
    assert names
    assert [name for name in names for other in ours[name] if f"{other}.".startswith(f"dsf.{side}.")] == []


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
    assert _find_circle(graph) == ""
    assert set(_find_circle(_children("dsf", graph)).split(" -> ")) == {"a", "b", "c"}
    (tmp_path / "dsf" / "a" / "four.py").write_text("from dsf.a.one import f\n")
    assert "dsf.b.two" in _find_circle(_graph(tmp_path))


def _find_reachable(starts: Iterable[str]) -> set[str]:
    """Return all modules that these modules import, directly or not; foreign modules by their top-level name."""
    modules = _modules(_ROOT)
    reached: set[str] = set()
    waiting = list(starts)
    while waiting:
        for name in _iterate_imports(modules[waiting.pop()], modules):
            module = name if name in modules else name.partition(".")[0]
            if module not in reached:
                reached.add(module)
                waiting += [module] if module in modules else []
    return reached


def _select_below(names: Iterable[str], *packages: str) -> list[str]:
    return sorted(name for name in names if any(f"{name}.".startswith(f"{package}.") for package in packages))


def test_scorer_library_is_independent() -> None:
    library = _select_below(_modules(_ROOT), "dsf.scorer")
    reached = _find_reachable(library)
    assert set(_select_below(reached, "dsf")) <= set(library)
    assert "fastapi" in reached
    assert not reached & {"celery", "kubernetes", "redis", "requests"}


def test_optimizer_imports_no_module_of_cycles() -> None:
    """The optimizer imports no hub controller and no agent, and only the readers of Redis."""
    optimizer = _select_below(_modules(_ROOT), "dsf.optimizer")
    # The command line and the page load these modules.
    commands = _select_below(optimizer, "dsf.optimizer.commands", "dsf.optimizer.pages")
    reached = _find_reachable(set(optimizer) - set(commands))
    assert "fastapi" in reached
    hub = ("celery", "demo", "fleetmetrics", "hub", "results", "schedule")
    agent = ("agent", "auth", "cycle", "sources")
    assert _select_below(reached, *commands, *(f"dsf.{name}" for name in (*hub, *agent))) == []


def test_model_and_solver_of_the_optimizer_do_no_input_and_output() -> None:
    reached = _find_reachable(f"dsf.optimizer.{name}" for name in ("model", "plan", "labels", "solve"))
    outside = (
        "dsf.kube",
        "dsf.optimizer.backend",
        "dsf.optimizer.service",
        "fastapi",
        "kubernetes",
        "redis",
        "requests",
    )
    assert "numpy" in reached
    assert _select_below(reached, *outside) == []
