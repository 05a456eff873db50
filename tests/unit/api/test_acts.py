"""Acts that annotations request: the meaning of values, and errors in them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dsf.api.acts import ACTS, ActRequest, find_requests, get_annotation, make_request, parse_request, parse_selector
from dsf.api.naming import MAX_NAME_LENGTH

LABELS = {"env": "prod", "region": "eu", "old": ""}


def test_rescore_without_words_of_its_own_is_for_all_clusters() -> None:
    assert parse_request("rescore", "1764486000") == ActRequest("rescore")


def test_request_names_clusters_and_a_note() -> None:
    request = parse_request("resume", "at=3 cluster=worker01,worker02,worker01 note='disks are new'")
    assert request == ActRequest("resume", ("worker01", "worker02"), note="disks are new")


def test_request_selects_clusters_by_labels() -> None:
    request = parse_request("rescore", "1 selector='region in (eu, us),!gone'")
    assert request.selector is not None
    assert request.selector.matches({"region": "eu"})
    assert not request.selector.matches({"region": "eu", "gone": ""})


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("env=prod", True),
        ("env==prod,region!=us", True),
        ("env=test", False),
        ("old", True),
        ("!old", False),
        ("missing!=x", True),
        ("region in (eu,us)", True),
        ("region notin (eu,us), env=prod", False),
        ("old=", True),
    ],
)
def test_selector_is_read_as_kubectl_reads_it(text: str, matches: bool) -> None:
    assert parse_selector(text).matches(LABELS) is matches


@pytest.mark.parametrize("text", ["", "a b", "env in prod", "=x", "a=b=c", "env in ()x"])
def test_invalid_selector_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a selector of labels"):
        parse_selector(text)


def test_pause_ends_after_a_duration_at_a_time_or_never() -> None:
    assert parse_request("pause", "2h at=1").compute_end(1000.0) == 1000.0 + 7200
    end = datetime(2026, 11, 21, 10, tzinfo=UTC).timestamp()
    assert parse_request("pause", "2026-11-21T10:00:00Z").compute_end(0.0) == end
    assert parse_request("pause", "at=1").compute_end(0.0) is None


def test_interval_is_a_duration() -> None:
    assert parse_request("interval", "5m at=1").interval == 300


@pytest.mark.parametrize(
    ("act", "text", "message"),
    [
        ("interval", "at=1", "the interval is missing"),
        ("interval", "0", "at least 1 s"),
        ("interval", "soon", "is not a time"),
        ("pause", "tomorrow", "is not the end of a pause"),
        ("pause", "2026-11-21T10:00:00", "is not the end of a pause"),
        ("sync", "1 cluster=a", "leave out cluster and selector"),
        ("rescore", "1 cluster=a selector=b=c", "cannot go together"),
        ("rescore", "1 clusters=a", "'clusters' is unknown; known are cluster, selector, note, at"),
        ("rescore", "1 cluster=a cluster=b", "separate several clusters by commas"),
        ("rescore", "1 2", "only one plain word"),
        ("rescore", "1 cluster=", "cluster is empty; leave it out for all clusters"),
        ("rescore", "1 selector=", "selector is empty"),
        ("rescore", "note='a", "is not closed"),
    ],
)
def test_invalid_request_names_annotation_and_remedy(act: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        parse_request(act, text)  # type: ignore[arg-type]
    assert str(raised.value).startswith(f"annotation dynamic-scoring.open-cluster-management.io/{act}: ")


def test_made_request_is_read_back() -> None:
    assert make_request("", at="1", clusters=[""]) == "cluster='' at=1"
    text = make_request("2h", at="17", selector="region in (eu, us)", note="it's new")
    assert parse_request("pause", text) == ActRequest(
        "pause", selector=parse_selector("region in (eu,us)"), pause_seconds=7200, note="it's new"
    )


def test_empty_and_foreign_annotations_request_nothing() -> None:
    assert find_requests({get_annotation("sync"): " ", "example.com/rescore": "1"}) == {}
    assert find_requests({get_annotation("sync"): " 1 "}) == {"sync": "1"}
    assert all(len(get_annotation(act).partition("/")[0]) <= MAX_NAME_LENGTH for act in ACTS)
