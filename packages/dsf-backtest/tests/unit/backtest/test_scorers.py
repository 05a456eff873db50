"""Reading a scorer of the hub beside objects that this version cannot read."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dsf.backtest import scorers
from dsf.errors import ManifestError
from dsf.kube.resources import DYNAMIC_SCORERS
from tests.support.manifests import ignored, scorer


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replace the DynamicScorers of the hub; this version's CRDs would reject some of them."""
    source = {
        "type": "Prometheus",
        "host": "http://prometheus:9090",
        "params": {"query": "up", "range": 60, "step": 15},
    }
    scoring = {"host": "http://scorer:8000", "path": "/scoring", "params": {"name": "s", "interval": 30}}
    present = [
        scorer("hub", "good", configSyncMode="None", source=source, scoring=scoring),
        scorer("hub", "later", source="of a later version"),
    ]
    monkeypatch.setattr(
        "dsf.kube.lists.list_objects", lambda _, resource: present if resource is DYNAMIC_SCORERS else []
    )
    return present


@pytest.mark.usefixtures("hub")
def test_unreadable_scorer_does_not_affect_another() -> None:
    assert scorers.read_summary_from_hub(None, "good", "c1").name == "good"  # type: ignore[arg-type]


@pytest.mark.usefixtures("hub")
def test_unreadable_scorer_is_reported_with_its_reason() -> None:
    with pytest.raises(ManifestError, match=r"DynamicScorer 'later' of the hub cannot be read: spec\.source: "):
        scorers.read_summary_from_hub(None, "later", "c1")  # type: ignore[arg-type]


def test_ignored_scorer_hides_no_other_of_its_name(hub: list[dict[str, Any]]) -> None:
    foreign_scorer = copy.deepcopy(hub[0])
    foreign_scorer["metadata"]["namespace"] = "z-team"
    foreign_scorer["spec"]["source"]["params"]["query"] = "theirs"
    hub.append(ignored(foreign_scorer))
    hub.append(scorer("z-team", "good", source="of a later version"))
    summary = scorers.read_summary_from_hub(None, "good", "c1")  # type: ignore[arg-type]
    assert summary.source_query == "up"
