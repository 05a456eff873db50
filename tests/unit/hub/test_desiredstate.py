"""What the hub reads of objects that a newer CRD let pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from dsf.api.types import ADDON_NAME
from dsf.backends.protocol import Backend, Kind, Manifest, ObjectKey
from dsf.cells import Cells
from dsf.hub.desiredstate import DesiredState
from dsf.settings import Settings
from tests.unit.hub.builders import cluster, config, scorer


class Place:
    """A backend with these objects."""

    shared_by = Cells()

    def __init__(self) -> None:
        self.objects: dict[Kind, Manifest] = {}
        self.events: list[tuple[Kind, str, str]] = []
        self.claims = ""

    def put(self, kind: Kind, manifest: Manifest, version: int = 1) -> None:
        self.objects[kind] = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": str(version)}}

    def list(self, kind: Kind) -> list[Manifest]:
        return [self.objects[kind]] if kind in self.objects else []

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        return self.objects.get(kind)

    def name_claims(self) -> str:
        return self.claims

    def keep_name_claims(self, text: str) -> None:
        self.claims = text

    def event(self, about: ObjectKey, type_: str, reason: str, message: str) -> None:
        self.events.append((about.kind, reason, message))


def _desired(place: Place, settings_factory: Callable[..., Settings], *, addon_mode: bool = False) -> DesiredState:
    settings = settings_factory(namespace="hub", addon_mode=addon_mode)
    return DesiredState(cast("Backend", place), settings, lambda key: None, lambda news: None)


def _spec(manifest: Manifest, **more: Any) -> Manifest:
    return {**manifest, "spec": {**manifest["spec"], **more}}


def test_fields_of_a_newer_crd_are_ignored_and_told_once(settings_factory: Callable[..., Settings]) -> None:
    place = Place()
    place.put(Kind.CLUSTER, cluster("a").to_manifest())
    masks = [{"clusterName": "b", "scoreName": "*", "until": "noon"}]
    place.put(Kind.CONFIG, _spec(config().to_manifest(), masks=masks, newer=1))
    newer = _spec(scorer("s").to_manifest(), newer={"x": 1})
    newer["status"] = {**newer["status"], "newer": True, "lastSyncedConfig": {"name": "n", "newer": True}}
    place.put(Kind.SCORER, newer)
    desired = _desired(place, settings_factory)
    plan = desired.update()
    assert plan.is_enabled
    assert plan.entries("a", {}).keys() == {"s"}
    assert plan.masks.hides("b", "s")
    assert sorted(place.events) == [
        (Kind.SCORER, "UnknownField", "this hub does not know spec.newer; it is ignored"),
        (
            Kind.CONFIG,
            "UnknownField",
            "this hub does not know spec.masks[0].until, spec.newer; they are ignored",
        ),
    ]
    # As it was.
    assert newer["spec"]["newer"] == {"x": 1}
    place.put(Kind.SCORER, newer, version=2)
    desired.invalidate()
    assert desired.update().entries("a", {}).keys() == {"s"}
    assert len(place.events) == 2


def test_other_mistakes_stay(settings_factory: Callable[..., Settings]) -> None:
    place = Place()
    place.put(Kind.CONFIG, config().to_manifest())
    place.put(Kind.SCORER, _spec(scorer("s").to_manifest(), newer=1, description=7))
    desired = _desired(place, settings_factory)
    assert desired.update().unreadable == {"hub/s"}
    assert desired.mistake(ObjectKey(Kind.SCORER, "hub", "s")) == "spec.description: 7 is not text"


def test_an_authentication_with_an_unknown_field_is_not_used(settings_factory: Callable[..., Settings]) -> None:
    place = Place()
    place.put(
        Kind.AUTHENTICATION,
        {
            "apiVersion": "dynamic-scoring.open-cluster-management.io/v1alpha1",
            "kind": "ScoringAuthentication",
            "metadata": {"name": "x", "namespace": "hub"},
            "spec": {"newer": 1},
        },
    )
    assert _desired(place, settings_factory).authentication("hub", "x") is None


def test_a_hosted_addon_is_reported_once(settings_factory: Callable[..., Settings]) -> None:
    place = Place()
    place.put(Kind.CLUSTER, cluster("a").to_manifest())
    addon: dict[str, Any] = {"metadata": {"name": ADDON_NAME, "namespace": "a"}}
    place.put(Kind.ADDON, addon)
    desired = _desired(place, settings_factory, addon_mode=True)
    desired.update()
    assert place.events == []
    addon["metadata"]["annotations"] = {"addon.open-cluster-management.io/hosting-cluster-name": "host"}
    place.put(Kind.ADDON, addon)
    for _ in range(2):
        desired.invalidate()
        assert desired.update().clusters.keys() == {"a"}
    assert [(kind, reason) for kind, reason, _ in place.events] == [(Kind.ADDON, "HostedModeNotSupported")]
