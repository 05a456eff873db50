"""Plans on a real API server: objects that are written, replaced, kept, rolled back and removed."""

from __future__ import annotations

from typing import Any

import pytest

from dsf.errors import ManifestError
from dsf.kube.resources import PLACEMENTS, Resource
from dsf.kube.session import ApiServerError
from dsf.optimizer.backend import Manifest, ManifestClient
from dsf.optimizer.errors import ApplyError, PlanConflictError
from dsf.optimizer.manifests import GENERATED_LABEL, PLAN_ID, make_name
from dsf.optimizer.selector import COMPLIANCE_CLAIM

from .bed import LABEL, POWER, OptimizerHarness


class Failing(ManifestClient):
    """The API server, but that writes fail from a certain one on, for a while."""

    def __init__(self, bed: OptimizerHarness, after: int, failures: int = 1) -> None:
        super().__init__(bed.session)
        self.after, self.failures = after, failures

    def _maybe_fail(self) -> None:
        self.after -= 1
        if self.after < 0 and self.failures > 0:
            self.failures -= 1
            raise ApiServerError("500: etcd has had enough", 500)

    def apply(self, resource: Resource, manifest: Manifest, *, force: bool = True, dry_run: bool = False) -> Manifest:
        if not dry_run:
            self._maybe_fail()
        return super().apply(resource, manifest, force=force, dry_run=dry_run)

    def delete(self, resource: Resource, namespace: str, name: str, **options: Any) -> None:
        if not options.get("dry_run"):
            self._maybe_fail()
        super().delete(resource, namespace, name, **options)


def test_applied_plan_writes_placements_and_bindings(bed: OptimizerHarness) -> None:
    report = bed.service().apply(bed.params())
    assert (report.status, report.objective_value, report.gap, report.applied) == ("Optimal", 115, 0, True)
    assert {change.change for change in report.changes} == {"created"}
    objects = bed.objects()
    first, second = bed.clusters
    name = make_name("placement", first)
    assert set(objects) == {
        ("Placement", name),
        ("Placement", make_name("placement", second)),
        ("PlacementBinding", make_name("binding", first)),
        ("PlacementBinding", make_name("binding", second)),
        ("Placement", "app01-placement"),
        ("Placement", "app02-placement"),
    }
    for generated in objects.values():
        assert generated["metadata"]["labels"][GENERATED_LABEL] == "true"
        assert generated["metadata"]["annotations"][PLAN_ID] == report.plan_id
    selected = {"key": LABEL, "operator": "In", "values": [first]}
    assert objects["Placement", name]["spec"]["predicates"] == [
        {"requiredClusterSelector": {"labelSelector": {"matchExpressions": [selected]}}}
    ]
    compliant = {"key": COMPLIANCE_CLAIM, "operator": "In", "values": ["compliant"]}
    app = objects["Placement", "app01-placement"]["spec"]
    assert app["numberOfClusters"] == 1
    assert app["predicates"] == [
        {
            "requiredClusterSelector": {
                "labelSelector": {"matchExpressions": [selected]},
                "claimSelector": {"matchExpressions": [compliant]},
            }
        }
    ]
    binding = objects["PlacementBinding", make_name("binding", first)]
    assert binding["placementRef"] == {
        "apiGroup": "cluster.open-cluster-management.io",
        "kind": "Placement",
        "name": name,
    }
    assert binding["subjects"] == [
        {"apiGroup": "policy.open-cluster-management.io", "kind": "Policy", "name": bed.policy("enable-mig-3g", 0)}
    ]


def test_dry_run_writes_nothing(bed: OptimizerHarness) -> None:
    report = bed.service().propose(bed.params(dryRun=True))
    assert (report.applied, report.objective_value) == (False, 115)
    assert [change.change for change in report.changes] == ["created"] * 6
    assert bed.objects() == {}


def test_repeated_plan_changes_nothing_and_another_plan_replaces_it(bed: OptimizerHarness) -> None:
    service = bed.service()
    first = service.apply(bed.params())
    versions = bed.versions()
    repeated = service.apply(bed.params())
    assert [assignment.kept for assignment in repeated.plan.assignments] == [1, 1]
    service.apply(bed.params())
    settled = bed.versions()
    third = service.apply(bed.params())
    assert {change.change for change in third.changes} == {"unchanged"}
    assert bed.versions() == settled
    assert settled.keys() == versions.keys()
    power = service.apply(bed.params(POWER))
    assert power.objective_value == 170
    assert power.plan_id != first.plan_id == repeated.plan_id
    # The same objects are changed: a cluster never has two policies, and never none.
    assert bed.versions().keys() == versions.keys()
    assert bed.bound() == [bed.policy("enable-mig-2g", 0), bed.policy("enable-mig-2g", 1)]


def test_smaller_plan_deletes_the_objects_of_the_larger_plan(bed: OptimizerHarness) -> None:
    service = bed.service()
    service.apply(bed.params())
    report = service.apply(bed.params(targetWorkloads=[{"name": "mwrs-app02"}]))
    assert [assignment.workload for assignment in report.plan.assignments] == ["mwrs-app02"]
    assert sorted(change.change for change in report.changes)[:3] == ["deleted"] * 3
    assert len(bed.objects()) == 3
    assert ("Placement", "app01-placement") not in bed.objects()


def test_reset_removes_generated_objects_only(bed: OptimizerHarness) -> None:
    service = bed.service()
    foreign_placement = {
        "apiVersion": PLACEMENTS.api_version,
        "kind": "Placement",
        "metadata": {"name": "theirs", "namespace": bed.namespace},
        "spec": {},
    }
    bed.session.create(PLACEMENTS.path(bed.namespace), foreign_placement)
    service.apply(bed.params())
    report = service.reset(bed.namespace)
    assert len(report.deleted) == 6
    assert set(bed.objects()) == {("Placement", "theirs")}
    assert service.reset(bed.namespace).deleted == []


def test_reset_is_limited_to_one_namespace_and_supports_dry_run(bed: OptimizerHarness) -> None:
    service = bed.service()
    service.apply(bed.params())
    versions = bed.versions()
    with pytest.raises(ManifestError, match="the name of the namespace to reset is empty"):
        service.reset("")
    report = service.reset(bed.namespace, dry_run=True)
    assert (len(report.deleted), report.dry_run) == (6, True)
    assert bed.versions() == versions


def test_failed_apply_undoes_its_earlier_writes(bed: OptimizerHarness) -> None:
    for after in range(6):
        with pytest.raises(ApplyError, match="the plan was not applied, everything is as it was before: Placement"):
            bed.service(Failing(bed, after)).apply(bed.params())
        assert bed.objects() == {}, after
    bed.service().apply(bed.params())
    before = bed.objects()
    for after in range(6):
        with pytest.raises(ApplyError, match="everything is as it was before") as caught:
            bed.service(Failing(bed, after)).apply(bed.params(POWER))
        assert caught.value.remaining_changes == ()
        assert bed.objects() == before, after
    bed.service().apply(bed.params(POWER))
    assert bed.bound() == [bed.policy("enable-mig-2g", 0), bed.policy("enable-mig-2g", 1)]


def test_failed_reset_restores_all_objects(bed: OptimizerHarness) -> None:
    bed.service().apply(bed.params())
    before = bed.objects()
    for after in range(6):
        with pytest.raises(ApplyError, match="everything is as it was before"):
            bed.service(Failing(bed, after)).reset(bed.namespace)
        assert bed.objects() == before, after
    assert len(bed.service().reset(bed.namespace).deleted) == 6


def test_incomplete_rollback_names_the_remaining_objects(
    bed: OptimizerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsf.optimizer.writer._UNDO_WAITS", (0.01,))
    with pytest.raises(ApplyError, match=r"The rollback is incomplete: .*\. Apply a plan again") as caught:
        bed.service(Failing(bed, 2, failures=1000)).apply(bed.params())
    assert len(caught.value.remaining_changes) == 2
    assert len(bed.objects()) == 2
    plans = bed.service().plans(bed.namespace).items
    assert [plan.complete for plan in plans] == [False]
    bed.service().apply(bed.params())
    assert len(bed.objects()) == 6


def test_missing_rights_are_detected_before_the_first_write(bed: OptimizerHarness) -> None:
    rules = [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]},
        {"apiGroups": [PLACEMENTS.group], "resources": ["placements"], "verbs": ["create", "patch"]},
    ]
    kubeconfig = bed.plane.service_account(bed.namespace, "half", rules)
    backend = ManifestClient(bed.plane.session(kubeconfig))
    with pytest.raises(ApplyError, match=r"nothing was changed: PlacementBinding .*403.*cannot patch"):
        bed.service(backend).apply(bed.params())
    assert bed.objects() == {}


def test_foreign_placement_is_not_changed(bed: OptimizerHarness) -> None:
    foreign_placement = {
        "apiVersion": PLACEMENTS.api_version,
        "kind": "Placement",
        "metadata": {"name": "app01-placement", "namespace": bed.namespace},
        "spec": {"numberOfClusters": 7},
    }
    bed.session.create(PLACEMENTS.path(bed.namespace), foreign_placement)
    with pytest.raises(PlanConflictError, match="exists and was not created by a plan; delete it, or hand it over"):
        bed.service().apply(bed.params())
    assert list(bed.objects()) == [("Placement", "app01-placement")]
    # Do as the message advises.
    path = PLACEMENTS.path(bed.namespace, "app01-placement")
    bed.session.merge(path, {"metadata": {"labels": {GENERATED_LABEL: "true"}}})
    bed.service().apply(bed.params())
    assert bed.session.get(path)["spec"]["numberOfClusters"] == 1


def test_rollback_restores_foreign_fields(bed: OptimizerHarness) -> None:
    selected = {"requiredClusterSelector": {"labelSelector": {"matchLabels": {"mine": "yes"}}}}
    foreign_placement = {
        "apiVersion": PLACEMENTS.api_version,
        "kind": "Placement",
        "metadata": {
            "name": "app01-placement",
            "namespace": bed.namespace,
            "labels": {GENERATED_LABEL: "true", "team": "gpu"},
            "annotations": {"note": "theirs", PLAN_ID: "theirs"},
        },
        "spec": {"numberOfClusters": 7, "predicates": [selected], "tolerations": [{"key": "gpu"}]},
    }
    path = PLACEMENTS.path(bed.namespace, "app01-placement")
    bed.session.create(PLACEMENTS.path(bed.namespace), foreign_placement)
    before = bed.objects()
    for after in range(6):
        with pytest.raises(ApplyError, match="everything is as it was before"):
            bed.service(Failing(bed, after)).apply(bed.params())
        assert bed.objects() == before, after
    bed.service().apply(bed.params())
    # A field of ours is changed, and foreign fields are added.
    changed = {"numberOfClusters": 7, "prioritizerPolicy": {"mode": "Exact"}}
    bed.session.merge(path, {"metadata": {"annotations": {"note": "new"}}, "spec": changed}, field_manager="somebody")
    before = bed.objects()
    for after in range(6):
        with pytest.raises(ApplyError, match="everything is as it was before"):
            bed.service(Failing(bed, after)).apply(bed.params(POWER))
        assert bed.objects() == before, after
    # Foreign fields stay foreign: the next plan keeps them.
    bed.service().apply(bed.params(POWER))
    spec = bed.session.get(path)["spec"]
    assert (spec["numberOfClusters"], spec["tolerations"][0]["key"]) == (1, "gpu")
    assert spec["prioritizerPolicy"] == {"mode": "Exact"}


def test_foreign_additions_stay_and_changes_are_repaired(bed: OptimizerHarness) -> None:
    service = bed.service()
    service.apply(bed.params())
    path = PLACEMENTS.path(bed.namespace, "app01-placement")
    tolerations = [{"key": "gpu", "operator": "Exists"}]
    bed.session.merge(path, {"spec": {"tolerations": tolerations, "numberOfClusters": 5}}, field_manager="somebody")
    report = service.apply(bed.params())
    changed = {change.name: change.change for change in report.changes}
    assert changed["app01-placement"] == "updated"
    assert bed.session.get(path)["spec"]["tolerations"] == tolerations
    assert bed.session.get(path)["spec"]["numberOfClusters"] == 1


class Overtaken(ManifestClient):
    """A client of the API server; another program creates a Placement of the same name just before ours is written."""

    def __init__(self, bed: OptimizerHarness) -> None:
        super().__init__(bed.session)
        self.foreign: Manifest = {}

    def apply(self, resource: Resource, manifest: Manifest, *, force: bool = True, dry_run: bool = False) -> Manifest:
        if not dry_run and not self.foreign and resource is PLACEMENTS:
            metadata = {key: manifest["metadata"][key] for key in ("name", "namespace")}
            body = {"apiVersion": PLACEMENTS.api_version, "kind": PLACEMENTS.kind, "metadata": metadata}
            body["spec"] = {"numberOfClusters": 7}
            self.foreign = self._session.create(PLACEMENTS.path(metadata["namespace"]), body, field_manager="other")
        return super().apply(resource, manifest, force=force, dry_run=dry_run)


def test_placement_that_somebody_else_creates_meanwhile_is_neither_changed_nor_deleted(bed: OptimizerHarness) -> None:
    backend = Overtaken(bed)
    with pytest.raises(ApplyError, match="everything is as it was before"):
        bed.service(backend=backend).apply(bed.params())
    metadata = backend.foreign["metadata"]
    assert bed.session.get(PLACEMENTS.path(metadata["namespace"], metadata["name"])) == backend.foreign
    assert set(bed.objects()) == {("Placement", metadata["name"])}
