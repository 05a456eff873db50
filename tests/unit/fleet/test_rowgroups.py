"""Groups of rows by state."""

from __future__ import annotations

import json
from typing import Any

from dsf.fleet.pairviews import make_entry_view
from dsf.fleet.rowgroups import RowGroups, compute_badness, group_rows, group_states_by_cluster
from dsf.fleet.snapshot import SnapshotRow
from dsf.fleet.verdict import Verdict
from dsf.store.entries import Entry, ScheduleOverride

NOW = 1000.0


def _row(
    cluster: str, entry: str = "{}", overrides: dict[str, ScheduleOverride] | None = None, **fields: object
) -> SnapshotRow:
    text = json.dumps({name: str(value) for name, value in fields.items()})
    return SnapshotRow.from_texts(f"{cluster}/cpu", entry, text, None, overrides or {})


def _rows(*rows: SnapshotRow) -> dict[str, SnapshotRow]:
    return {row.cluster: row for row in rows}


def _states(groups: RowGroups) -> dict[str, str]:
    return {row.cluster: str(state) for state, rows in groups.states.items() for row in rows}


def test_stopped_pair_is_not_paused() -> None:
    entry = Entry(cluster="down", scorer="cpu", score_name="cpu", interval=30).make_stopped()
    for is_suspended, state in ((False, Verdict.EXPIRED), (True, Verdict.PAUSED)):
        text = entry.model_copy(update={"suspended": is_suspended}).dump()
        assert _row("down", text, last_success=NOW - 300, valid_until=NOW - 1, items=1).find_state(NOW) is state


def test_stopped_pair_can_be_paused_manually() -> None:
    entry = Entry(cluster="down", scorer="cpu", score_name="cpu", interval=30).make_stopped()
    override = ScheduleOverride(paused=True, paused_until=NOW + 30, by="ann")
    for overrides, paused_source in (({}, None), ({"*/cpu": override}, "*/cpu")):
        view = make_entry_view(entry, overrides, NOW + 5, NOW)
        assert (view.paused, view.paused_source, view.next_run) == (paused_source is not None, paused_source, None)


def test_time_alone_changes_states() -> None:
    entry = Entry(cluster="paused", scorer="cpu", score_name="cpu", interval=30).model_dump_json()
    override = ScheduleOverride(paused=True, paused_until=NOW + 30)
    rows = _rows(
        _row("valid", last_success=NOW, valid_until=NOW + 60, items=1),
        _row("empty", last_success=NOW, valid_until=NOW + 90, items=0),
        _row("failing", last_success=NOW, valid_until=NOW + 10, failing=1),
        _row("paused", entry, {"paused/cpu": override}, last_success=NOW, valid_until=NOW + 60, items=1),
        _row("never"),
    )
    expected = {"valid": "ok", "empty": "empty", "failing": "failing", "paused": "paused", "never": "never"}
    first = group_rows({"cpu": rows}, NOW, {})
    assert _states(first["cpu"]) == expected
    by_scorer = group_states_by_cluster(first)
    assert {cluster: str(states["cpu"]) for cluster, states in by_scorer.items()} == expected
    assert compute_badness(by_scorer["failing"].values()) > compute_badness(by_scorer["valid"].values()) == 0.0
    assert group_rows({"cpu": rows}, NOW + 29.9, first)["cpu"] is first["cpu"]
    second = group_rows({"cpu": rows}, NOW + 30, first)
    assert _states(second["cpu"]) == {**expected, "paused": "ok"}
    expired = {**expected, "valid": "expired", "paused": "expired"}
    third = group_rows({"cpu": rows}, NOW + 60, second)
    assert _states(third["cpu"]) == expired
    assert _states(group_rows({"cpu": rows}, NOW + 90, third)["cpu"]) == {**expired, "empty": "expired"}
    # A clock that was ahead is corrected.
    assert _states(group_rows({"cpu": rows}, NOW, third)["cpu"]) == expected


def test_regrouping_covers_only_changed_rows() -> None:
    valid: dict[str, Any] = {"last_success": NOW, "valid_until": NOW + 60, "items": 1}
    rows = {name: _rows(_row("a", **valid), _row("b", **valid)) for name in ("cpu", "memory")}
    before = group_rows(rows, NOW, {})
    after = group_rows({**rows, "cpu": _rows(_row("a", failing=1), _row("b", **valid))}, NOW + 1, before)
    assert after["memory"] is before["memory"]
    assert after["cpu"].states.keys() == {Verdict.FAILING, Verdict.OK}
    assert group_rows({}, NOW + 1, before) == {}
