"""Statuses, `dsf status`, the API and the exporter agree about the verdict of a pair."""

from __future__ import annotations

import json

import pytest

from dsf.api.score import compute_expiry, has_expired
from dsf.fleet.pairviews import make_score_view
from dsf.fleet.rowgroups import RowGroups
from dsf.fleet.snapshot import SnapshotRow
from dsf.fleet.verdict import Verdict, compute_verdict
from dsf.fleetmetrics.families import PairFamilies
from dsf.hub.cycleoutcomes import CycleOutcomes
from dsf.scores.desired import compute_desired_score
from dsf.store.pairs import PairScore, PairState, parse_row_fields
from dsf.store.registry import ClusterRecord, ScorerRecord

NOW = 1_800_000_000.0
VALIDITY = 10
# The validity is below the interval, so the score expires between two cycles.
SCORER = ScorerRecord(name="s", score_name="score", interval=30, validity=VALIDITY)


def pair(at: float, factor: float) -> tuple[str, PairScore]:
    """Return the row of a pair, and its score."""
    expires_at = compute_expiry(at, VALIDITY, factor)
    score = PairScore(
        run="r", score_name="score", at=at, valid_until=expires_at, results=[({"pod": "a"}, 1.0)], items=[("a", 1)]
    )
    fields = {"last_success": at, "valid_until": expires_at, "items": 1, "failing": 0}
    return json.dumps({name: str(value) for name, value in fields.items()}), score


@pytest.mark.parametrize(
    ("age", "factor", "is_usable"),
    [(5, 1.0, True), (VALIDITY, 1.0, False), (20, 1.0, False), (20, 3.0, True), (30, 3.0, False)],
)
def test_all_readers_agree(age: float, factor: float, is_usable: bool) -> None:
    text, score = pair(NOW - age, factor)
    state = PairState("c", "s", {"score": score.model_dump_json()}, **parse_row_fields("c/s", text))
    row = SnapshotRow.from_texts("c/s", "{}", text, None, {})
    expected = Verdict.OK if is_usable else Verdict.EXPIRED
    assert compute_verdict(state, NOW) is row.find_state(NOW) is expected
    assert has_expired(state.valid_until, NOW) is not is_usable
    # The status of the DynamicScorer.
    cycles = CycleOutcomes.from_states([state], NOW)
    assert (cycles.succeeding, cycles.expired) == (int(is_usable), int(not is_usable))
    # `dsf status` and the JSON API.
    assert RowGroups({"c": row}, NOW).states == {expected: [row]}
    view = make_score_view(state, {"s": SCORER}, NOW)
    assert (view.fresh, view.expired, bool(view.items)) == (is_usable, not is_usable, is_usable)
    # The exporter.
    families = PairFamilies({"s": "score"}, NOW)
    families.add(state)
    [scores] = [family for family in families.collect() if family.name == "dynamic_score"]
    assert bool(scores.samples) is is_usable
    # The AddOnPlacementScore.
    desired_score = compute_desired_score(state.score, 0, SCORER, ClusterRecord(name="c"), now=NOW, factor=factor)
    assert (desired_score is not None) is is_usable
