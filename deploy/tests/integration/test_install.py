"""The chart on a real API server: applied, installed, upgraded, uninstalled."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.tests.integration.hubcluster import (
    ADDON_TEMPLATES,
    DEPLOYMENTS,
    SERVICES,
    STATEFUL_SETS,
    HubCluster,
    Release,
)
from dsf.api.crd import make_crds
from dsf.api.types import CONFIG_NAME, GROUP, HUB_NAMESPACE
from dsf.errors import ObjectNotFoundError
from dsf.kube.resources import DYNAMIC_SCORING_CONFIGS, SECRETS
from dsf.kube.session import Session
from tests.support import chart
from tests.support.child import run_program
from tests.support.controlplane import ControlPlane, find
from tests.support.controlplane_crds import CRDS, create_crds, read_ocm_crds
from tests.support.controlplane_fixtures import control_plane_or_skip
from tests.support.wait import wait_for

CONFIG = DYNAMIC_SCORING_CONFIGS.path(HUB_NAMESPACE, CONFIG_NAME)
RENEW_AFTER = "dynamic-scoring.open-cluster-management.io/renew-after"
SECRET_NAMES = ("hub-signing", "flower", "redis-users", "redis-ca", "redis-tls")


@pytest.fixture(scope="module")
def shared(hub: HubCluster) -> Iterator[Release]:
    """All tests that upgrade a release share this one."""
    with hub.release() as release:
        yield release


@pytest.fixture
def release(shared: Release) -> Release:
    """The shared release, reset to the default values."""
    if shared.values:
        shared.upgrade()
    return shared


def _secrets(session: Session) -> dict[str, dict[str, str]]:
    names = [f"dynamic-scoring-{name}" for name in SECRET_NAMES]
    return {name: session.get(SECRETS.path(HUB_NAMESPACE, name))["data"] for name in names}


def _template(session: Session) -> list[dict[str, Any]]:
    template = session.get(ADDON_TEMPLATES.path(name="dynamic-scoring-framework"))
    manifests: list[dict[str, Any]] = template["spec"]["agentSpec"]["workload"]["manifests"]
    return manifests


def test_objects_are_accepted_unchanged(plane: ControlPlane) -> None:
    """Yield all sets of values, each with its own namespaces, whose names appear in kubectl's messages.

    Objects that an earlier set also has are left out, except for its namespace and generated objects.
    """
    accounts, objects = [], []
    applied_texts: set[str] = set()
    for name, values in chart.MATRIX.items():
        copied = {key: dict(value) if isinstance(value, dict) else value for key, value in values.items()}
        copied.setdefault("hubSetting", {})["namespace"] = f"hub-{name}"
        copied.setdefault("spokeSetting", {})["namespace"] = f"agent-{name}"
        # The CRDs exist already, as those of the release.
        rendered = [o for o in chart.render(copied) if o["kind"] != "CustomResourceDefinition"]
        for o in [*rendered, *_agent(rendered)]:
            text = re.sub(rf"(hub|agent)-{name}\b|\b[0-9a-f]{{64}}\b", "", json.dumps(o, sort_keys=True))
            if (text not in applied_texts or o["kind"] == "Namespace") and o["kind"] not in chart.FOREIGN_KINDS:
                applied_texts.add(text)
                objects.append(o)
        accounts.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"hub-{name}"}})
        # Pods need the account that a controller manager makes.
        default = {"name": "default", "namespace": f"hub-{name}"}
        accounts.append({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": default})
    plane.kubectl("create", "-f", "-", stdin=_dump_list(accounts))
    # First the Service that names a port of the nodes: others get any that is free.
    objects.sort(key=lambda o: o["kind"] != "Service" or "nodePort" not in str(o["spec"]))
    output = plane.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", stdin=_dump_list(objects))
    assert output.count("serverside-applied") == len(objects), output
    assert "Warning" not in output
    # Names for the whole cluster, and ports of its nodes, are free for the other tests.
    names = {
        (o["apiVersion"], o["kind"], o["metadata"]["name"]): o for o in objects if "namespace" not in o["metadata"]
    }
    remaining = [o for (_, kind, _), o in names.items() if kind != "Namespace"]
    remaining += [o for o in objects if o["kind"] == "Service" and o["spec"].get("type") == "NodePort"]
    plane.kubectl("delete", "-f", "-", stdin=_dump_list(remaining))


def _dump_list(objects: list[chart.Object]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


def _agent(objects: list[chart.Object]) -> list[chart.Object]:
    # With the variables of OCM replaced, in a namespace that is deleted with the test.
    text = json.dumps(chart.agent_objects(objects)).replace("{{CLUSTER_NAME}}", "c1")
    agent: list[chart.Object] = json.loads(text)
    return sorted(agent, key=lambda o: o["kind"] != "Namespace")


def test_renewed_ca_and_its_predecessor_accept_each_others_certificates(
    release: Release, session: Session, tmp_path: Path
) -> None:
    """The renewed CA has the same name and key, so that certificates stay valid in any order of renewal."""
    tls, ca = "dynamic-scoring-redis-tls", "dynamic-scoring-redis-ca"
    before, template = _secrets(session), _template(session)
    # As if half of its life were over.
    past = {"metadata": {"annotations": {RENEW_AFTER: None}}}
    for name in (ca, tls):
        session.merge(SECRETS.path(HUB_NAMESPACE, name), past)
    release.upgrade()
    after = _secrets(session)
    assert after[ca]["tls.crt"] != before[ca]["tls.crt"]
    assert after[ca]["tls.key"] == before[ca]["tls.key"]
    assert after[tls]["tls.crt"] != before[tls]["tls.crt"]
    for trusted in (before, after):
        for secrets in (before, after):
            _verify(tmp_path, trusted[tls]["ca.crt"], secrets[tls]["tls.crt"])
    old, new = (_agent_part(objects, "ConfigMap", "-ca") for objects in (template, _template(session)))
    assert old["data"]["redis-ca.crt"] != new["data"]["redis-ca.crt"]
    old, new = (_agent_part(objects, "Deployment") for objects in (template, _template(session)))
    assert old == new, "agents read it at the next connection, without a restart"


def test_rsa_ca_keeps_its_key_on_upgrade(release: Release, session: Session, tmp_path: Path) -> None:
    """Earlier versions of the chart created such keys."""
    tls, ca = "dynamic-scoring-redis-tls", "dynamic-scoring-redis-ca"
    subject = ["-subj", f"/CN={ca}", "-addext", "keyUsage=critical,digitalSignature,keyEncipherment,keyCertSign"]
    run_program(["openssl", "genrsa", "-traditional", "-out", "rsa.key", "2048"], cwd=tmp_path, check=True)
    run_program(["openssl", "req", "-x509", "-key", "rsa.key", "-out", "rsa.crt", *subject], cwd=tmp_path, check=True)
    files = {"tls.crt": "rsa.crt", "tls.key": "rsa.key"}
    rsa_files = {key: base64.b64encode((tmp_path / name).read_bytes()).decode() for key, name in files.items()}
    secret = session.get(SECRETS.path(HUB_NAMESPACE, ca))
    # In Helm's name: it changes no field of another manager. Without the annotation, as if half of its life were over.
    [helm] = [entry["manager"] for entry in secret["metadata"]["managedFields"] if entry["operation"] == "Apply"]
    metadata = {"name": ca, "labels": secret["metadata"]["labels"], "annotations": secret["metadata"]["annotations"]}
    del metadata["annotations"][RENEW_AFTER]
    body = {**secret, "metadata": metadata, "data": rsa_files}
    session.apply(SECRETS.path(HUB_NAMESPACE, ca), body, field_manager=helm)
    release.upgrade()
    after = _secrets(session)
    assert after[ca]["tls.key"] == rsa_files["tls.key"]
    assert after[ca]["tls.crt"] != rsa_files["tls.crt"]
    assert after[tls]["ca.crt"] == after[ca]["tls.crt"]
    _verify(tmp_path, after[tls]["ca.crt"], after[tls]["tls.crt"])
    # The next upgrade therefore creates no CA.
    assert int(session.get(SECRETS.path(HUB_NAMESPACE, ca))["metadata"]["annotations"][RENEW_AFTER]) > time.time()


def test_ca_with_a_new_key_is_installed_by_the_documented_commands(
    plane: ControlPlane, release: Release, session: Session, tmp_path: Path
) -> None:
    page = (chart.ROOT / "docs" / "rotation.md").read_text()
    section = page.partition("A CA with another key")[2].partition("\n## ")[0]
    commands = section.partition("```console\n")[2].partition("```")[0].replace("\\\n", "").splitlines()
    texts = [command.removeprefix("$ ") for command in commands]
    tls = "dynamic-scoring-redis-tls"
    before = _secrets(session)[tls]
    for text in texts:
        if text.startswith("openssl "):
            subprocess.run(["sh", "-c", text], cwd=tmp_path, check=True, capture_output=True)
        elif text.startswith("kubectl "):
            expanded_command = run_program(["sh", "-c", f"echo {text}"], check=True).stdout
            plane.kubectl(*(str(tmp_path / w) if w.startswith("new.") else w for w in expanded_command.split()[1:]))
        elif "--set-file redis.tls.ca=new.crt" in text:
            release.upgrade({"redis": {"tls": {"ca": (tmp_path / "new.crt").read_text()}}})
            both = _secrets(session)[tls]
            assert both["tls.crt"] == before["tls.crt"]
        else:
            assert text.endswith("--set redis.tls.ca="), text
            release.upgrade()
    after = _secrets(session)[tls]
    _verify(tmp_path, both["ca.crt"], before["tls.crt"])
    _verify(tmp_path, both["ca.crt"], after["tls.crt"])
    _verify(tmp_path, after["ca.crt"], after["tls.crt"])
    assert base64.b64decode(after["ca.crt"]).decode().strip() == (tmp_path / "new.crt").read_text().strip()
    agents = _agent_part(_template(session), "ConfigMap", "-ca")["data"]["redis-ca.crt"]
    assert agents.strip() == (tmp_path / "new.crt").read_text().strip()


def _agent_part(objects: list[dict[str, Any]], kind: str, suffix: str = "") -> dict[str, Any]:
    name = f"dynamic-scoring-agent{suffix}"
    (part,) = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name]
    return part


def _verify(folder: Path, authority: str, certificate: str) -> None:
    for name, encoded in (("ca.crt", authority), ("tls.crt", certificate)):
        (folder / name).write_bytes(base64.b64decode(encoded))
    # Python checks certificates as strictly.
    command = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", "ca.crt", "tls.crt"]
    process = run_program(command, cwd=folder)
    assert process.returncode == 0, process.stderr


def test_upgrade_keeps_generated_values(release: Release, session: Session) -> None:
    before, template = _secrets(session), _template(session)
    redis = session.get(STATEFUL_SETS.path(HUB_NAMESPACE, "dynamic-scoring-redis"))
    release.upgrade()
    assert _secrets(session) == before
    assert _template(session) == template, "agents are not rolled out anew"
    updated_redis = session.get(STATEFUL_SETS.path(HUB_NAMESPACE, "dynamic-scoring-redis"))
    assert updated_redis["metadata"]["generation"] == redis["metadata"]["generation"], "Redis is not restarted"

    # A new name needs a new certificate, and no agent needs a new CA for it.
    release.upgrade({"redis": {"exposure": {"type": "LoadBalancer", "host": "192.0.2.10"}}})
    after = _secrets(session)
    tls, users = "dynamic-scoring-redis-tls", "dynamic-scoring-redis-users"
    assert after[tls]["tls.crt"] != before[tls]["tls.crt"]
    assert after[tls]["ca.crt"] == before[tls]["ca.crt"]
    assert after[users] == before[users]
    assert after["dynamic-scoring-hub-signing"] == before["dynamic-scoring-hub-signing"]
    updated_redis = session.get(STATEFUL_SETS.path(HUB_NAMESPACE, "dynamic-scoring-redis"))
    assert updated_redis["metadata"]["generation"] == redis["metadata"]["generation"], "Redis loads it while it runs"

    # An address that the load balancer gets is used by the next upgrade.
    path = SERVICES.path(HUB_NAMESPACE, "dynamic-scoring-redis-external", "status")
    session.merge(path, {"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.9"}]}}})
    release.upgrade({"redis": {"exposure": {"type": "LoadBalancer"}}})
    (agent,) = [o for o in _template(session) if o["kind"] == "Deployment"]
    (container,) = chart.containers(agent)
    assert chart.environment(container)["DSF_REDIS_URL"] == "rediss://203.0.113.9:6379/0"
    tls_secret = session.get(SECRETS.path(HUB_NAMESPACE, tls))
    assert "203.0.113.9" in tls_secret["metadata"]["annotations"]["dynamic-scoring.open-cluster-management.io/names"]


def test_user_objects_survive_upgrade_uninstallation_and_reinstallation(
    shared: Release, session: Session, plane: ControlPlane
) -> None:
    masks = [{"clusterName": "c1", "scoreName": "*"}]
    other = {"hubSetting": {"scoringConfig": {"masks": [{"clusterName": "*", "scoreName": "*"}]}}}
    # The controller creates it elsewhere.
    config = {"apiVersion": DYNAMIC_SCORING_CONFIGS.api_version, "kind": DYNAMIC_SCORING_CONFIGS.kind}
    session.create(
        DYNAMIC_SCORING_CONFIGS.path(HUB_NAMESPACE),
        config | {"metadata": {"name": CONFIG_NAME}, "spec": {"masks": masks}},
    )
    shared.upgrade(other)
    assert session.get(CONFIG)["spec"]["masks"] == masks
    shared.uninstall()
    for path in (
        DEPLOYMENTS.path(HUB_NAMESPACE, "dynamic-scoring-hub"),
        SECRETS.path(HUB_NAMESPACE, "dynamic-scoring-redis-users"),
        ADDON_TEMPLATES.path(name="dynamic-scoring-framework"),
    ):
        with pytest.raises(ObjectNotFoundError):
            session.get(path)
    assert session.get(CONFIG)["spec"]["masks"] == masks
    assert "dynamicscorers" in plane.kubectl("get", "crd")
    shared.install(other)
    assert session.get(CONFIG)["spec"]["masks"] == masks


def test_crds_are_installed_upgraded_and_kept_by_helm(tmp_path: Path) -> None:
    older_chart = tmp_path / "chart"
    shutil.copytree(chart.CHART, older_chart)
    crds = older_chart / "files" / "crds.yaml"
    crds.write_text(crds.read_text().replace("    - dscorer\n", "    - older\n"))
    path = CRDS.path(name=f"dynamicscorers.{GROUP}")
    with control_plane_or_skip(crds=False) as plane, contextlib.closing(plane.session()) as session:
        create_crds(session, read_ocm_crds(find("crds")))
        with HubCluster(plane).release(folder=older_chart) as release:
            assert _installed_crds(session) == {crd["metadata"]["name"] for crd in make_crds()}
            assert session.get(path)["spec"]["names"]["shortNames"] == ["older"]
            release.upgrade()
            assert session.get(path)["spec"]["names"]["shortNames"] == ["dscorer"]
            release.uninstall()
            assert len(_installed_crds(session)) == 3, "they stay, with every DynamicScorer"
            release.install({"crds": {"keep": False}})
            release.uninstall()
            wait_for(lambda: not _installed_crds(session), 30, "the CRDs to go")


def _installed_crds(session: Session) -> set[str]:
    items = session.get(CRDS.path())["items"]
    return {crd["metadata"]["name"] for crd in items if crd["spec"]["group"] == GROUP}
