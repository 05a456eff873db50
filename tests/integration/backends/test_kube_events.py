"""Events on a real API server, each written once."""

from __future__ import annotations

import contextlib
import uuid
from typing import Any

import pytest

from dsf.backends.kube_events import EventRecorder
from dsf.backends.protocol import EventType
from dsf.kube.resources import DYNAMIC_SCORERS, EVENTS
from dsf.kube.session import Session
from tests.support.controlplane import ControlPlane
from tests.support.manifests import scorer
from tests.support.wait import wait_for


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    return control_plane.namespace()


@pytest.fixture
def regarding(session: Session, namespace: str) -> dict[str, str]:
    """A reference to a DynamicScorer."""
    uid = session.create(DYNAMIC_SCORERS.path(namespace), scorer(namespace))["metadata"]["uid"]
    return {
        "apiVersion": DYNAMIC_SCORERS.api_version,
        "kind": DYNAMIC_SCORERS.kind,
        "namespace": namespace,
        "name": "sample",
        "uid": uid,
    }


def _events(session: Session, namespace: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = session.get(EVENTS.path(namespace))["items"]
    return items


def _tell(recorder: EventRecorder, regarding: dict[str, str], type_: EventType, reason: str, message: str) -> None:
    """Record it, and wait until it is written or dropped."""
    recorder.record(regarding, type_, reason, message)
    assert recorder.flush(30)


def test_event_describes_its_object_and_reason(session: Session, namespace: str, regarding: dict[str, str]) -> None:
    recorder = EventRecorder(session, "hub-1")
    for _ in range(5):
        _tell(recorder, regarding, "Warning", "BadQuery", "parse error")
    (event,) = _events(session, namespace)
    assert (event["type"], event["reason"], event["note"]) == ("Warning", "BadQuery", "parse error")
    assert (event["regarding"], event["reportingInstance"]) == (regarding, "hub-1")


def test_long_names_and_messages_are_accepted(session: Session, namespace: str) -> None:
    name = "a" * 199 + "-" + "b" * 53
    regarding = {"apiVersion": "v1", "kind": "ConfigMap", "namespace": namespace, "name": name}
    _tell(EventRecorder(session, "h" * 300), regarding, "Normal", "Reason", "ü" * 2000)
    (event,) = _events(session, namespace)
    assert len(event["note"].encode()) <= 1024
    assert event["note"].endswith("ü...")


def test_events_of_an_object_without_a_namespace_are_in_default(session: Session, control_plane: ControlPlane) -> None:
    name = control_plane.cluster()
    regarding = {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster", "name": name}
    _tell(EventRecorder(session, "hub-1"), regarding, "Normal", "Distributed", "all scorers")
    assert [event["reason"] for event in _events(session, "default") if event["regarding"]["name"] == name] == [
        "Distributed"
    ]


def test_unwritable_event_is_dropped(
    control_plane: ControlPlane, session: Session, namespace: str, regarding: dict[str, str]
) -> None:
    limited = control_plane.service_account(namespace, "hub", [])
    with contextlib.closing(control_plane.session(limited)) as weak:
        recorder = EventRecorder(weak, "hub-1")
        _tell(recorder, regarding, "Normal", "Scoring", "not written")
        rule = {"apiGroups": [EVENTS.group], "resources": [EVENTS.plural], "verbs": ["create"]}
        control_plane.set_rules(namespace, "hub", [rule])

        def event_is_written() -> bool:
            _tell(recorder, {**regarding, "uid": str(uuid.uuid4())}, "Normal", "Scoring", "works")
            return bool(_events(session, namespace))

        wait_for(event_is_written, 30, "the new right to be in force")
    assert [event["note"] for event in _events(session, namespace)] == ["works"]
