"""The rule that divides clusters among cells."""

from __future__ import annotations

from collections import Counter

import pytest

from dsf.api.types import CLUSTER_SET_LABEL
from dsf.cells import Cell, Cells, cell_of
from dsf.errors import SettingsError
from dsf.settings import Settings

CLUSTERS = [f"cluster-{number:04}" for number in range(4000)]


def cells(*names: str, **sets: list[str]) -> list[Cell]:
    return [Cell(name=name, clusterSets=tuple(sets.get(name, ()))) for name in names]


def test_without_cells_there_is_no_cell() -> None:
    assert cell_of("one", {}, ()) == ""
    assert (Cells().of("one", {}), Cells().is_first, Cells().is_other("a")) == ("", True, False)


def test_a_cluster_set_goes_to_the_cell_that_lists_it_and_all_others_to_those_that_list_none() -> None:
    rule = cells("a", "b", "gpu", gpu=["gpu", "edge"])
    assert cell_of("one", {CLUSTER_SET_LABEL: "edge"}, rule) == "gpu"
    others = {cell_of(name, {CLUSTER_SET_LABEL: "default"}, rule) for name in CLUSTERS}
    assert others == {"a", "b"}
    assert [cell_of(name, {}, rule) for name in CLUSTERS] == [cell_of(name, {"x": "y"}, rule) for name in CLUSTERS]


def test_shares_are_equal_and_a_cell_more_moves_only_its_own() -> None:
    three, four = cells("a", "b", "c"), cells("d", "c", "b", "a")
    before = {name: cell_of(name, {}, three) for name in CLUSTERS}
    after = {name: cell_of(name, {}, four) for name in CLUSTERS}
    assert all(abs(number - 1000) < 120 for number in Counter(after.values()).values())
    moved = {after[name] for name in CLUSTERS if after[name] != before[name]}
    assert moved == {"d"}


def test_the_rule_never_changes_by_itself() -> None:
    # By another Python, machine or version: each cell computes it for itself.
    assert [cell_of(name, {}, cells("a", "b")) for name in CLUSTERS[:8]] == list("aaabbbaa")


def test_the_first_cell_and_the_others() -> None:
    rule = tuple(cells("a", "b"))
    first, second = Cells("a", rule), Cells("b", rule)
    assert (first.is_first, second.is_first) == (True, False)
    assert (first.is_other("b"), first.is_other("a"), first.is_other("gone"), first.is_other("")) == (
        True,
        False,
        False,
        False,
    )


@pytest.mark.parametrize(
    ("cell", "rule", "words"),
    [
        ("c", '[{"name": "a"}, {"name": "b"}]', "DSF_CELL: 'c' is not in DSF_CELLS, which has a, b"),
        ("a", '[{"name": "a"}, {"name": "a"}]', "DSF_CELLS: there are two cells 'a'"),
        (
            "a",
            '[{"name": "a", "clusterSets": ["x"]}, {"name": "b", "clusterSets": ["x"]}, {"name": "c"}]',
            "DSF_CELLS: ManagedClusterSet 'x' is listed twice",
        ),
        ("a", '[{"name": "a", "clusterSets": ["x"]}]', "DSF_CELLS: one cell must be without clusterSets"),
        ("a", "[]", "one is set without the other"),
        ("", '[{"name": "a"}]', "one is set without the other"),
        ("A", '[{"name": "A"}]', "DSF_CELLS: String should match pattern"),
        ("a", '[{"name": "a", "sets": ["x"]}]', "DSF_CELLS: Extra inputs are not permitted"),
    ],
)
def test_what_is_no_rule_is_refused(monkeypatch: pytest.MonkeyPatch, cell: str, rule: str, words: str) -> None:
    monkeypatch.setenv("DSF_CELL", cell)
    monkeypatch.setenv("DSF_CELLS", rule)
    with pytest.raises(SettingsError) as caught:
        Settings.load()
    assert words in str(caught.value)


def test_a_rule_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSF_CELL", "b")
    monkeypatch.setenv("DSF_CELLS", '[{"name": "a", "clusterSets": ["gpu"]}, {"name": "b"}]')
    found = Settings.load().division
    assert (found.own, found.names) == ("b", ("a", "b"))
    assert found.of("one", {CLUSTER_SET_LABEL: "gpu"}) == "a"
