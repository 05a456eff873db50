"""The summary of a backtest's items, and its file."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path

import pytest

from dsf.api.scorerule import HoldRule
from dsf.api.summary import ScorerSummary, SourceSummary
from dsf.backtest.charts import draw_blocks
from dsf.backtest.errors import BacktestError
from dsf.backtest.recording import Question, Record, Recording, SourceQuestion
from dsf.backtest.run import _find_unsampled_seconds, list_moments
from dsf.backtest.scorers import move_url
from dsf.backtest.summary import BacktestView, summarize_records
from dsf.sources.base import RequestRecord

QUESTION = Question(
    cluster="c1",
    scorer="s",
    score_name="s",
    every=300,
    validity=900,
    sources=(SourceQuestion(type="Prometheus", query="up", range=60, step=15),),
    scoring_endpoint="http://scorer:8000/scoring",
    formats=("${node}",),
)
ASKED = range(3000, 6001, 300)


def record(at: int, items: Mapping[str, int] | None = None, *, series: int = 1, cluster: str = "c1") -> Record:
    """Return the record of a moment; without items it is an error."""
    if items is None:
        return Record(cluster=cluster, at=at, outcome="error", stage="score", reason="timeout", message=f"at {at}")
    return Record(cluster=cluster, at=at, outcome="ok", items=dict(items), series=series)


def summary(
    *records: Record, noise: int = 0, question: Question = QUESTION, hold: HoldRule | None = None
) -> BacktestView:
    """Return the summary of these moments."""
    return summarize_records(question, ASKED, records, noise=noise, hold=hold)


def test_each_item_has_its_values_changes_and_gaps() -> None:
    values = [5, 5, 9, None, 8, -100, 100, 100, 7, 7, 7]
    records = [record(at, None if value is None else {"n": value}) for at, value in zip(ASKED, values, strict=True)]
    view = summary(*records)
    (item,) = view.items
    present_values = [value for value in values if value is not None]
    assert (item.minimum, item.median, item.maximum) == (-100, statistics.median(present_values), 100)
    # Changes: 5 -> 9, 9 -> 8 over the gap, 8 -> -100, -100 -> 100, 100 -> 7.
    assert item.changes == 5
    assert item.missing == pytest.approx(1 / 11, abs=1e-4)
    assert item.line == values
    assert view.outcomes == {"ok": 10, "error": 1}
    assert [(failure.stage, failure.reason, failure.moments, failure.message) for failure in view.failures] == [
        ("score", "timeout", 1, "at 3900")
    ]
    assert summary(*records, noise=1).items[0].changes == 4


@pytest.mark.parametrize(
    ("values", "hold", "held_changes"),
    [
        # The published value is 50, then 60 after it has lasted for a step.
        ([50, 53, 50, 60, 60, 60], HoldRule(min_change=5, for_seconds=300), 1),
        # The value 60 lasts for only one moment each time.
        ([50, 60, 50, 60, 50, 60], HoldRule(min_change=5, for_seconds=300), 0),
        ([50, 60, 50, 60, 50, 60], HoldRule(min_change=5), 5),
        # After 900 s without a score the state is outdated, so 54 is published at once.
        ([50, None, None, None, 54, 54], HoldRule(min_change=5), 1),
        ([50, None, None, 54, 54, 54], HoldRule(min_change=5), 0),
    ],
)
def test_summary_counts_changes_left_by_a_hold(values: list[int | None], hold: HoldRule, held_changes: int) -> None:
    records = [record(at, None if value is None else {"n": value}) for at, value in zip(ASKED, values, strict=False)]
    (item,) = summary(*records, hold=hold).items
    assert item.held_changes == held_changes
    (item,) = summary(*records).items
    assert "held_changes" not in item.model_dump()


@pytest.mark.parametrize("number", [1, 2, 3, 10])
def test_median_equals_that_of_the_values(number: int) -> None:
    values = [(at * 37) % 11 - 5 for at in ASKED[:number]]
    view = summary(*(record(at, {"n": value}) for at, value in zip(ASKED, values, strict=False)))
    assert view.items[0].median == statistics.median(values)


def test_items_are_sorted_by_number_of_changes() -> None:
    view = summary(*(record(at, {"still": 1, "busy": at // 300 % 2}) for at in ASKED))
    assert [item.name for item in view.items] == ["busy", "still"]


def test_notes_say_what_the_source_lacks_and_what_a_clock_did() -> None:
    # The source's retention is shorter than the requested range, and the newest moments are later than its data.
    moments = [record(at, {}, series=int(3600 <= at <= 5400)) for at in ASKED]
    lacking = summary(*moments, *(record(6000 + 300 * number, {"n": 1}) for number in range(1, 5)))
    assert (lacking.moments, lacking.items) == (11, [])
    assert [note.partition(": ")[0] for note in lacking.notes] == [
        "the source has no series before 1970-01-01T01:00:00Z",
        "the source has no series after 1970-01-01T01:30:00Z",
        "4 moments of the file are still to come",
    ]
    assert "no series at any moment" in summary(*(record(at, {}, series=0) for at in ASKED)).notes[0]
    often = QUESTION.model_copy(update={"every": 10})
    assert "10 s between two moments are less than the step" in summary(record(3000, {"n": 1}), question=often).notes[0]
    assert summary(*(record(at, {"n": 1}) for at in ASKED)).notes == []
    # Failures are no evidence about the source.
    assert summary(record(3000), record(3300, {"n": 1}), record(3600)).notes == []


def test_moments_with_a_part_of_their_range_are_noted() -> None:
    moments = [record(at, {"n": 1}).model_copy(update={"unsampled": max(0, 4500 - at)}) for at in ASKED]
    [note] = summary(*moments).notes
    partial = [at for at in ASKED if 4500 - at > 60]
    assert note.startswith(f"at {len(partial)} of {len(moments)} moments, the last one ")
    assert "only the end of the range" in note


def _fetched(*series: bytes, source: str | None = None) -> RequestRecord:
    """Return the request to a source that has answered with these series."""
    request = RequestRecord("up", "http://p", source=source)
    request.record_response(100, series)
    return request


@pytest.mark.parametrize(("first", "expected"), [(400, 0), (340, 0), (1000, 600), (b"1000.5", 600), (None, 0)], ids=str)
def test_seconds_without_samples_are_those_before_the_first_one(first: object, expected: int) -> None:
    number = first if isinstance(first, bytes) else str(first).encode()
    series = [b'{"metric":{},"values":[[3000,"1"]]},{"metric":{"a":"b"},"values": [ [%s,"1"],[3600,"1"]]}' % number]
    summary_ = ScorerSummary(name="s", score_name="s", source_type="Prometheus", source_range=3600, source_step=60)
    assert _find_unsampled_seconds(summary_, [_fetched(*(series if first is not None else []))], 4000) == expected


def test_seconds_without_samples_are_those_of_the_query_that_lacks_most() -> None:
    whole, half = (b'{"metric":{},"values":[[%d,"1"],[3600,"1"]]}' % first for first in (400, 2200))
    summary_ = ScorerSummary(
        name="s",
        score_name="s",
        source_name="cpu",
        source_type="Prometheus",
        source_range=3600,
        source_step=60,
        sources=(SourceSummary(name="users", type="Prometheus", range=1800, step=60),),
    )
    for name, late, expected in (("cpu", half, 1800), ("users", half, 0), ("users", whole, 0)):
        fetched = [_fetched(whole, source="cpu"), _fetched(late, source=name)]
        assert _find_unsampled_seconds(summary_, fetched, 4000) == expected
    assert _find_unsampled_seconds(summary_, [], 4000) == 0


def test_moments_do_not_depend_on_the_time_of_the_query() -> None:
    assert list_moments(900, 300, 1000.5) == range(0, 901, 300)
    assert list_moments(900, 300, 1199.9) == list_moments(900, 300, 900.0)
    for seconds, step, words in ((10, 300, "no moment"), (10, 0, "no moment"), (10**9, 1, "more than")):
        with pytest.raises(BacktestError, match=words):
            list_moments(seconds, step, 1e9)


def test_lines_of_blocks() -> None:
    assert draw_blocks([1, 2, 3, None, 8]) == "▁▂▃ █"
    assert draw_blocks([7, 7]) == "▁▁"
    assert draw_blocks([0, 0, 10, 10], width=2) == "▁█"
    assert draw_blocks([]) == ""


def test_addresses_are_moved_to_another_server() -> None:
    url = "http://prometheus.monitoring.svc:9090/api/v1/query_range"
    assert move_url(url, "http://localhost:9091") == "http://localhost:9091/api/v1/query_range"
    assert move_url(url, "http://localhost:9091/prom/query_range") == "http://localhost:9091/prom/query_range"
    with pytest.raises(BacktestError, match="is no URL"):
        move_url(url, "localhost:9091")


# --- the file --------------------------------------------------------------------------------------------------------


def test_second_run_asks_only_missing_moments(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    with Recording(file, writing=True) as recording:
        recording.begin_question(QUESTION)
        for each in (record(3000, {"n": 1}), record(3300), record(3600, {"n": 2})):
            recording.add_record(each)
    # The writer was killed in the middle of a line.
    file.write_bytes(file.read_bytes() + b'{"cluster":"c1","at":39')
    with Recording(file, writing=True) as recording:
        assert recording.list_missing_moments("c1", ASKED) == [3300, *range(3900, 6001, 300)]
        recording.begin_question(QUESTION)
        recording.add_record(record(3300, {"n": 3}))
        assert [(each.at, each.items) for each in recording.iterate_records("c1")] == [
            (3000, {"n": 1}),
            (3300, {"n": 3}),
            (3600, {"n": 2}),
        ]
    assert len(file.read_text().splitlines()) == 5


def test_recording_of_another_question_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    with Recording(file, writing=True) as recording:
        recording.begin_question(QUESTION)
        recording.begin_question(QUESTION.model_copy(update={"cluster": "c2", "every": 60}))
    with (
        Recording(file, writing=True) as recording,
        pytest.raises(BacktestError, match=r"another question \(every, formats differ\); write into another file"),
    ):
        recording.begin_question(QUESTION.model_copy(update={"every": 60, "formats": ("x",)}))


def test_recording_has_one_writer(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    with Recording(file, writing=True), pytest.raises(BacktestError, match="another backtest writes"):
        Recording(file, writing=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}\n", r"a.jsonl:1: is not a line of a backtest"),
        ('\n{"cluster":"c1","at":1,"outcome":"ok","items":{"n":128}}\n', r"a.jsonl:2: is not a line of a backtest"),
        ('{"cluster":"c1","at":1,"outcome":"ok"}\n', "no question of cluster 'c1' precedes this record"),
    ],
)
def test_invalid_recording_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(text)
    with pytest.raises(BacktestError, match=words):
        Recording(file)
    with pytest.raises(BacktestError, match="cannot be opened"):
        Recording(tmp_path / "none.jsonl")


def test_files_of_several_clusters_can_be_put_together(tmp_path: Path) -> None:
    whole = b""
    for cluster in ("c1", "c2"):
        with Recording(tmp_path / cluster, writing=True) as recording:
            recording.begin_question(QUESTION.model_copy(update={"cluster": cluster}))
            recording.add_record(record(3000, {"n": 1}, cluster=cluster))
        whole += (tmp_path / cluster).read_bytes()
    (tmp_path / "all").write_bytes(whole)
    with Recording(tmp_path / "all") as recording:
        assert sorted(recording.questions) == ["c1", "c2"]
        assert [recording.list_moments(cluster) for cluster in ("c1", "c2")] == [[3000], [3000]]
