"""The kubeconfig that a command uses."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from dsf.cli import context
from dsf.cli.session import _connect_session, add_kubeconfig
from dsf.settings import Settings


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a home with kubectl's default kubeconfig, outside of a pod."""
    for name in ("KUBECONFIG", "DSF_KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text("{}")
    return tmp_path


def test_commands_take_all_files_of_kubeconfig(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    default = home / ".kube" / "config"
    assert add_kubeconfig(Settings.load()).kubeconfig == default
    # The default is not used, since it may belong to another cluster: the error names the missing files.
    for paths in (f"{default}:/nowhere/b", "/nowhere/a:/nowhere/b"):
        monkeypatch.setenv("KUBECONFIG", paths)
        assert str(add_kubeconfig(Settings.load()).kubeconfig) == paths
    monkeypatch.setenv("KUBECONFIG", "")
    assert add_kubeconfig(Settings.load()).kubeconfig == default
    default.unlink()
    assert add_kubeconfig(Settings.load()).kubeconfig is None


def test_commands_take_the_setting_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(home / "other"))
    monkeypatch.setenv("DSF_KUBECONFIG", "/a:/b")
    assert str(add_kubeconfig(Settings.load()).kubeconfig) == "/a:/b"


def test_commands_wait_for_a_redis_that_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    # A command that ran earlier in this process may have selected an API server.
    monkeypatch.setattr(context, "_kube_choice", context.KubeChoice())
    waits: list[float] = []
    monkeypatch.setattr("redis.retry.sleep", waits.append)
    monkeypatch.setattr("random.random", lambda: 0.5)
    monkeypatch.setenv("DSF_REDIS_URL", "redis://127.0.0.1:1/0")
    with _connect_session() as session, pytest.raises(redis.ConnectionError):
        session.redis.ping()
    assert 2.0 <= sum(waits) <= 6.0
