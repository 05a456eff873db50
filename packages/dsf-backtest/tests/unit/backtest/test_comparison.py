"""Two backtests side by side, and Placements over time, compared with OCM's rules at each moment."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsf.backtest.comparison import PlacementDifference, compare_recordings, compute_rank_correlation, find_common
from dsf.backtest.errors import BacktestError
from dsf.backtest.recording import Recording
from dsf.errors import ManifestError
from dsf.placements.replay import replay_situations
from dsf.placements.scheduling import ScoreKey, Situation, decide_placement
from dsf.placements.situations import read_situations_from_file

from .test_summary import QUESTION, record

Values = Mapping[str, Sequence[int | None]]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Return a stack that closes recordings."""
    with ExitStack() as opened:
        yield opened


def side(stack: ExitStack, name: str, values: Values, *, start: int = 3000, **changes: Any) -> Recording:
    """Record a backtest: cluster -> its values of the item `n`; None is a failed moment."""
    recording = stack.enter_context(Recording())
    recording.name = name
    for cluster, line in values.items():
        recording.begin_question(QUESTION.model_copy(update={"cluster": cluster, **changes}))
        for number, value in enumerate(line):
            items = None if value is None else {"n": value}
            recording.add_record(record(start + 300 * number, items, cluster=cluster))
    return recording


def placement(
    tmp_path: Path, *, clusters: Sequence[str] = ("a", "b"), further_documents: str = "", **spec: Any
) -> list[Situation]:
    """Read a Placement from a file; it prefers the item `n` of the score `s`."""
    coordinate = {"type": "AddOn", "addOn": {"resourceName": "s", "scoreName": "n"}}
    policy = {"mode": "Exact", "configurations": [{"weight": 1, "scoreCoordinate": coordinate}]}
    spec = {"numberOfClusters": 1, "prioritizerPolicy": policy} | spec
    manifest = {"kind": "Placement", "metadata": {"name": "web", "namespace": "apps"}, "spec": spec}
    file = tmp_path / "placement.yaml"
    file.write_text(yaml.safe_dump(manifest) + further_documents)
    return read_situations_from_file(file, clusters)


def replay(a: Recording, b: Recording, situations: Sequence[Situation]) -> PlacementDifference:
    """Return the comparison of the only Placement."""
    ((web,), _) = replay_situations(situations, a, b, find_common(a, b))
    return web


def test_differing_decisions_are_listed_with_their_times(stack: ExitStack, tmp_path: Path) -> None:
    a = side(stack, "a", {"a": [10, 10, 10, 10, 10, 10], "b": [5] * 6})
    b = side(stack, "b", {"a": [10, 4, 4, 10, 4, 10], "b": [5] * 6})
    web = replay(a, b, placement(tmp_path))
    assert (web.decisions, web.differ, web.flaps_a, web.flaps_b) == (6, 3, 0, 4)
    assert [(span.start.timestamp(), span.seconds, span.a, span.b) for span in web.spans] == [
        (3300, 600, ["a"], ["b"]),
        (4200, 300, ["a"], ["b"]),
    ]
    view = compare_recordings(a, b, find_common(a, b))
    (item, same) = view.items
    assert (item.cluster, item.item, item.moments, item.mean_a, item.mean_b) == ("a", "n", 6, 10, 7)
    assert (item.mean_difference, item.largest_difference) == (-3, -6)
    assert same.mean_difference == 0
    assert [(rank.item, rank.moments, rank.mean, rank.lowest) for rank in view.ranks] == [("n", 6, 0, -1)]


def test_steady_holds_what_was_chosen_the_moment_before(stack: ExitStack, tmp_path: Path) -> None:
    values = {"a": [10, 4, 4, 10, 4, 10], "b": [5] * 6}
    a, b = side(stack, "a", values), side(stack, "b", values)
    coordinates: list[dict[str, Any]] = [
        {"type": "AddOn", "addOn": {"resourceName": "s", "scoreName": "n"}},
        {"type": "BuiltIn", "builtIn": "Steady"},
    ]
    configurations = [{"weight": 1, "scoreCoordinate": coordinate} for coordinate in coordinates]
    policy = {"mode": "Exact", "configurations": configurations}
    web = replay(a, b, placement(tmp_path, prioritizerPolicy=policy))
    assert (web.differ, web.flaps_a, web.flaps_b) == (0, 0, 0)


def test_failure_keeps_the_previous_score_until_it_expires(stack: ExitStack, tmp_path: Path) -> None:
    # Scores are valid for 900 s, and OCM reads a missing score as 0, which beats -5.
    a = side(stack, "a", {"a": [5, *[None] * 5], "b": [-5] * 6})
    b = side(stack, "b", {"a": [-9, *[None] * 5], "b": [-5] * 6})
    web = replay(a, b, placement(tmp_path))
    assert [(span.start.timestamp(), span.seconds) for span in web.spans] == [(3000, 1200)]
    assert web.flaps_b == 1


def test_sides_with_different_score_names_are_compared(stack: ExitStack, tmp_path: Path) -> None:
    """Items that are named after their scores are matched."""
    a = side(stack, "a", {"a": [1, 1], "b": [2, 2]}, score_name="n")
    b = stack.enter_context(Recording())
    for cluster, value in (("a", 3), ("b", 2)):
        b.begin_question(QUESTION.model_copy(update={"cluster": cluster, "score_name": "m"}))
        for at in (3000, 3300):
            b.add_record(record(at, {"m": value}, cluster=cluster))
    coordinate = {"type": "AddOn", "addOn": {"resourceName": "n", "scoreName": "n"}}
    policy = {"mode": "Exact", "configurations": [{"scoreCoordinate": coordinate}]}
    view = compare_recordings(a, b, find_common(a, b))
    assert [(item.cluster, item.mean_a, item.mean_b) for item in view.items] == [("a", 1, 3), ("b", 2, 2)]
    web = replay(a, b, placement(tmp_path, prioritizerPolicy=policy))
    assert [(span.a, span.b) for span in web.spans] == [(["b"], ["a"])]


def test_on_random_fleets_each_moment_is_the_scheduler_s_decision(stack: ExitStack, tmp_path: Path) -> None:
    drawn = random.Random(32)
    for number in range(50):
        names = [f"c{index}" for index in range(drawn.randint(2, 8))]
        lines = [{name: [drawn.randint(-100, 100) for _ in range(12)] for name in names} for _ in "ab"]
        a, b = (side(stack, label, line) for label, line in zip("ab", lines, strict=True))
        taints = [
            {
                "kind": "ManagedCluster",
                "metadata": {"name": name},
                "spec": {"taints": [{"key": "k", "effect": drawn.choice(["NoSelect", "NoSelectIfNew"])}]}
                if drawn.random() < 0.2
                else {},
            }
            for name in names
        ]
        taint_documents = "---\n" + yaml.safe_dump_all(taints)
        number_of_clusters = drawn.randint(1, 4)
        mode = drawn.choice(["Exact", "Additive"])
        coordinate = {"type": "AddOn", "addOn": {"resourceName": "s", "scoreName": "n"}}
        policy = {"mode": mode, "configurations": [{"weight": drawn.choice([-2, 1, 3]), "scoreCoordinate": coordinate}]}
        (situation,) = placement(
            tmp_path, further_documents=taint_documents, numberOfClusters=number_of_clusters, prioritizerPolicy=policy
        )
        web = replay(a, b, [situation])
        decided: list[frozenset[str]] = [frozenset(), frozenset()]
        differ = 0
        for moment in range(12):
            for which, line in enumerate(lines):
                hypothetical_scores = {ScoreKey(name, "s", "n"): line[name][moment] for name in names}
                now = type(situation)(**{**vars(situation), "decided": decided[which]})
                decided[which] = frozenset(decide_placement(now, hypothetical_scores=hypothetical_scores).chosen)
            differ += decided[0] != decided[1]
        assert web.differ == differ, f"fleet {number}"


def test_disjoint_recordings_are_refused_with_their_extent(stack: ExitStack) -> None:
    a = side(stack, "first", {"a": [1, 2]})
    with pytest.raises(BacktestError, match="no cluster is in both: first has a, second has b"):
        find_common(a, side(stack, "second", {"b": [1, 2]}))
    with pytest.raises(BacktestError, match=r"no moment is in both: first is from 1970-01-01 00:50 UTC to .* UTC"):
        find_common(a, side(stack, "second", {"a": [1, 2]}, start=90_000))


def test_cluster_of_one_side_uses_its_current_score_for_both(stack: ExitStack, tmp_path: Path) -> None:
    a = side(stack, "a", {"a": [1, 1], "b": [50, 50]})
    b = side(stack, "b", {"a": [1, 1]})
    web = replay(a, b, placement(tmp_path))
    assert (web.decisions, web.differ) == (2, 0)


def test_notes_list_omitted_parts(stack: ExitStack, tmp_path: Path) -> None:
    a = side(stack, "first", {"a": [1, 2], "b": [1, 2]})
    b = side(stack, "second", {"a": [1, 2]}, every=60)
    assert compare_recordings(a, b, find_common(a, b)).notes == [
        "only first has b: left out",
        "the moments are 60 and 300 s apart: a score counts until the next one",
    ]
    _, notes = replay_situations(placement(tmp_path, clusters=("a", "x")), a, b, find_common(a, b))
    assert notes == ["clusters of Placements that were not tested have their score of now: x"]


_PLACEMENT = b"{kind: Placement, metadata: {name: p, namespace: n}}\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"kind: Pod\n", "has no Placement"),
        (b"[", "cannot be read"),
        (b"[" * 5000, "cannot be read"),
        (b"caf\xe9: 1", "cannot be read"),
        (b"at: 2026-13-01", "cannot be read"),
        (b"count: " + b"9" * 5000, "cannot be read"),
        (_PLACEMENT + b"--- {kind: AddOnPlacementScore, metadata: {name: s}}", "'s' has no namespace"),
    ],
    ids=["no placement", "unclosed", "deep", "latin-1", "no date", "long number", "score without a cluster"],
)
def test_file_of_placements_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "p.yaml").write_bytes(content)
    with pytest.raises(ManifestError, match=words):
        read_situations_from_file(tmp_path / "p.yaml", ["a"])


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([(1, 10), (2, 20), (3, 30)], 1.0),
        ([(1, 30), (2, 20), (3, 10)], -1.0),
        # Ties get their mean rank: ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4.
        ([(1, 1), (2, 2), (2, 3), (3, 4)], 0.9486832980505138),
        ([(1, 1), (1, 2)], None),
        ([(1, 1)], None),
    ],
)
def test_spearman(pairs: list[tuple[int, int]], expected: float | None) -> None:
    correlation = compute_rank_correlation(pairs)
    assert correlation == (expected if expected is None else pytest.approx(expected))
