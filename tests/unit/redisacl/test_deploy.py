"""The files under deploy/redis are generated, valid and consistent."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from dsf.redisacl.__main__ import main
from dsf.redisacl.rules import hub_roles

FOLDER = Path(__file__).parents[3] / "deploy" / "redis"
MANIFESTS = sorted(path.name for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml")


def _documents(name: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all((FOLDER / name).read_text()) if document]


def _passwords() -> dict[str, str]:
    (users, _) = _documents("secrets.example.yaml")
    passwords_by_role: dict[str, str] = users["stringData"]
    return passwords_by_role


def test_example_acl_file_equals_the_generated_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Regenerate with: python -m dsf.redisacl --passwords FOLDER > deploy/redis/users.acl.example"""
    for role, password in _passwords().items():
        (tmp_path / role).write_text(password)
    assert main(["--passwords", str(tmp_path)]) == 0
    assert (FOLDER / "users.acl.example").read_text() == capsys.readouterr().out


def test_chart_rules_equal_the_generated_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """Regenerate with: python -m dsf.redisacl --rules > deploy/helm/files/users.acl"""
    assert main(["--rules"]) == 0
    assert (FOLDER.parent / "helm" / "files" / "users.acl").read_text() == capsys.readouterr().out


@pytest.mark.parametrize("without", ["", "web", "flower", "optimizer", "flower-tasks"])
def test_chart_script_writes_the_same_file_as_the_command(tmp_path: Path, without: str) -> None:
    passwords = {role: password for role, password in _passwords().items() if role != without}
    folder = tmp_path / "passwords"
    folder.mkdir()
    for role, password in passwords.items():
        (folder / role).write_text(f"{password}\n")
    assert main(["--passwords", str(folder), "--file", str(tmp_path / "expected.acl")]) == 0
    assert _write_users(folder, tmp_path / "users.acl").returncode == 0
    assert (tmp_path / "users.acl").read_text() == (tmp_path / "expected.acl").read_text()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("missing", "no password of hub (all services) and none of controller"),
        ("short", "beat: a password of at least 16"),
    ],
)
def test_chart_script_refuses_wrong_passwords(tmp_path: Path, change: str, words: str) -> None:
    folder = tmp_path / "passwords"
    folder.mkdir()
    for role, password in _passwords().items():
        (folder / role).write_text(password)
    if change == "missing":
        (folder / "hub").unlink()
        (folder / "controller").unlink()
    else:
        (folder / "beat").write_text("short-secret")
    (tmp_path / "users.acl").write_text("as before\n")
    process = _write_users(folder, tmp_path / "users.acl")
    assert process.returncode == 2
    assert words in process.stderr
    assert "short-secret" not in process.stderr
    assert (tmp_path / "users.acl").read_text() == "as before\n"


def _write_users(passwords: Path, file: Path) -> subprocess.CompletedProcess[str]:
    files = FOLDER.parent / "helm" / "files"
    command = ["/bin/sh", str(files / "write-users"), str(files / "users.acl"), str(passwords), str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_each_user_has_a_password() -> None:
    assert set(_passwords()) == set(hub_roles())
    text = (FOLDER / "sentinel.conf.example").read_text()
    assert f"auth-pass hub {_passwords()['sentinel']}" in text


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_are_valid(name: str) -> None:
    for document in _documents(name):
        kubernetes_validate.validate(document, "1.36", strict=True)


def test_mounted_secrets_and_paths_exist() -> None:
    (stateful_set,) = _documents("statefulset.yaml")
    pod = stateful_set["spec"]["template"]["spec"]
    secrets = {document["metadata"]["name"] for document in _documents("secrets.example.yaml")}
    assert {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume} == secrets
    (generated,) = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["configMapGenerator"]
    assert generated["name"] in {v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v}
    mounts = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    text = (FOLDER / "redis.conf").read_text()
    for path in re.findall(r"^[a-z-]+ (/\S+)$", text, re.MULTILINE):
        assert any(path == mount or path.startswith(f"{mount}/") for mount in mounts), path


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl on PATH")
def test_kubectl_can_apply_the_folder() -> None:
    answer = subprocess.run(["kubectl", "kustomize", str(FOLDER)], capture_output=True, text=True, check=True)
    manifests = [document for document in yaml.safe_load_all(answer.stdout) if document]
    kinds = sorted(document["kind"] for document in manifests)
    assert kinds == ["ConfigMap", "NetworkPolicy", "Service", "StatefulSet"]
    (config_map,) = (document for document in manifests if document["kind"] == "ConfigMap")
    assert config_map["data"]["redis.conf"] == (FOLDER / "redis.conf").read_text()
    (stateful_set,) = (document for document in manifests if document["kind"] == "StatefulSet")
    volumes = stateful_set["spec"]["template"]["spec"]["volumes"]
    assert config_map["metadata"]["name"] in {volume.get("configMap", {}).get("name") for volume in volumes}
