"""`make node`: errors on unsuitable machines, and NetworkPolicies as rules of iptables; the rest needs root."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.node import conftest, release
from tests.node.lab import folders, host, policies
from tests.node.lab.command import LabError


def test_without_root_one_line_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    reason = host.reason_against()
    assert "sudo make node" in reason
    assert "\n" not in reason
    monkeypatch.setenv("CI", "")
    with pytest.raises(pytest.skip.Exception, match="sudo make node"):
        conftest.cannot(reason)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="sudo make node"):
        conftest.cannot(reason)


def test_every_file_has_its_place_in_the_order() -> None:
    assert sorted(conftest._ORDER) == sorted(path.stem.removeprefix("test_") for path in folders.HERE.glob("test_*.py"))


class _Cluster:
    """Returns the objects of a test."""

    def __init__(self, **kinds: list[dict[str, Any]]) -> None:
        self._kinds = kinds

    def items(self, kind: str, *_: str) -> list[dict[str, Any]]:
        return self._kinds[kind]


def _pod(namespace: str, name: str, address: str) -> dict[str, Any]:
    return {
        "metadata": {"namespace": namespace, "name": name, "labels": {"app": name}},
        "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 8080}]}]},
        "status": {"podIP": address, "phase": "Running"},
    }


def test_network_policy_becomes_rules_of_its_pod_addresses() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"team": "b"}}, "podSelector": {"matchLabels": {"app": "client"}}}
    spec = {
        "podSelector": {"matchLabels": {"app": "server"}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [peer], "ports": [{"port": "http", "protocol": "TCP"}]}],
        "egress": [{"ports": [{"port": 53, "protocol": "UDP"}]}],
    }
    cluster = _Cluster(
        pods=[_pod("a", "server", "10.0.0.1"), _pod("b", "client", "10.0.0.2"), _pod("a", "client", "10.0.0.3")],
        namespaces=[{"metadata": {"name": "a"}}, {"metadata": {"name": "b", "labels": {"team": "b"}}}],
        networkpolicies=[{"metadata": {"namespace": "a"}, "spec": spec}],
    )
    lines, pods = policies.rules(cluster)  # type: ignore[arg-type]
    assert pods == 1
    assert [line for line in lines if line.startswith(("-A IN", "-A EG"))] == [
        "-A IN-10.0.0.1 -s 10.0.0.2 -p tcp --dport 8080 -j RETURN",
        "-A IN-10.0.0.1 -j REJECT",
        "-A EG-10.0.0.1  -p udp --dport 53 -j RETURN",
        "-A EG-10.0.0.1 -j REJECT",
    ]


def test_selector_supports_the_kubernetes_operators() -> None:
    labels = {"a": "1"}
    expression = {"key": "a", "operator": "NotIn", "values": ["2"]}
    assert policies.selects({}, labels)
    assert policies.selects({"matchLabels": {"a": "1"}, "matchExpressions": [expression]}, labels)
    assert not policies.selects({"matchLabels": {"a": "2"}}, labels)
    assert not policies.selects({"matchExpressions": [{"key": "b", "operator": "Exists"}]}, labels)


def test_upgrade_starts_from_the_newest_tag_or_the_last_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The user who runs the tests may sign commits and tags.
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    root = tmp_path / "root"
    root.mkdir()
    with pytest.raises(LabError, match="not a git repository"):
        release.last(tmp_path / "none", root)

    def git(*words: str) -> None:
        author_options = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.com")
        subprocess.run(["git", *author_options, *words], cwd=root, check=True, capture_output=True)

    def commit(text: str) -> None:
        (root / "file").write_text(text)
        git("add", "file")
        git("commit", "--message", text)

    git("init")
    commit("first")
    (root / "file").write_text("not committed")
    built_release = release.last(tmp_path / "commit", root)
    assert (built_release.folder / "file").read_text() == "first"
    git("tag", "v0.1.0")
    git("tag", "villa")
    commit("second")
    built_release = release.last(tmp_path / "tag", root)
    assert (built_release.name, (built_release.folder / "file").read_text()) == ("v0.1.0", "first")
    assert built_release.hub_image.endswith("/dynamic-scoring-framework:released-v0.1.0")
