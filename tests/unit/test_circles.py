"""No module and no package of `dsf` imports itself by way of others, wherever the import stands in a file.

An import within a function or under TYPE_CHECKING counts, too: it hides a circle and does not remove it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_Graph = Mapping[str, set[str]]


def _modules(root: Path) -> dict[str, Path]:
    """Those of the framework, and those that distributions of their own add to its package."""
    places = [root, root / "demo", *(root / "packages").glob("*")]
    return {_name(file.relative_to(place)): file for place in places for file in (place / "dsf").rglob("*.py")}


def _name(file: Path) -> str:
    parts = file.with_suffix("").parts
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


def test_the_framework_imports_nothing_of_other_distributions(ours: _Graph) -> None:
    """It finds them by entry points and by names, and says what to install where they are absent."""
    added = {name for name, file in _modules(_ROOT).items() if (_ROOT / "dsf") not in file.parents}
    assert {"dsf.otlp", "dsf.optimizer", "dsf.scorer", "dsf.up"} <= added
    assert {name: others & added for name, others in ours.items() if name not in added and others & added} == {}


@pytest.mark.parametrize("side", ["backends", "cli", "demo", "fleetmetrics", "fleet", "hub", "results", "up", "web"])
def test_sources_know_nothing_of_the_hub(side: str, ours: _Graph) -> None:
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
    assert _circle(graph) == ""
    assert set(_circle(_children("dsf", graph)).split(" -> ")) == {"a", "b", "c"}
    (tmp_path / "dsf" / "a" / "four.py").write_text("from dsf.a.one import f\n")
    assert "dsf.b.two" in _circle(_graph(tmp_path))


def _reached(starts: Iterable[str]) -> set[str]:
    """All modules that some modules of ours import, by way of others too; others by their first name."""
    known = _modules(_ROOT)
    reached: set[str] = set()
    waiting = list(starts)
    while waiting:
        for name in _imported(known[waiting.pop()], known):
            module = name if name in known else name.partition(".")[0]
            if module not in reached:
                reached.add(module)
                waiting += [module] if module in known else []
    return reached


def _below(names: Iterable[str], *packages: str) -> list[str]:
    return sorted(name for name in names if any(f"{name}.".startswith(f"{package}.") for package in packages))


def test_the_library_for_scoring_apis_stands_alone() -> None:
    library = _below(_modules(_ROOT), "dsf.scorer")
    reached = _reached(library)
    assert set(_below(reached, "dsf")) <= set(library)
    assert "fastapi" in reached
    assert not reached & {"celery", "kubernetes", "redis", "requests"}


def test_the_optimiser_knows_nothing_of_cycles() -> None:
    """No hub controller, no agent; of Redis what readers of the fleet use."""
    optimizer = _below(_modules(_ROOT), "dsf.optimizer")
    # What the command line and the page load.
    commands = _below(optimizer, "dsf.optimizer.commands", "dsf.optimizer.pages")
    reached = _reached(set(optimizer) - set(commands))
    assert "fastapi" in reached
    hub = ("celery", "demo", "fleetmetrics", "hub", "results", "schedule")
    agent = ("agent", "auth", "cycle", "sources")
    assert _below(reached, *commands, *(f"dsf.{name}" for name in (*hub, *agent))) == []


def test_the_optimisers_model_and_solver_do_no_input_and_output() -> None:
    reached = _reached(f"dsf.optimizer.{name}" for name in ("model", "plan", "labels", "solve"))
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
    assert _below(reached, *outside) == []
