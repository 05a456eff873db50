"""Choosing the backend."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dsf.backends import make_backend
from dsf.backends.kube import KubeBackend
from dsf.errors import SettingsError
from dsf.settings import Settings

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


def test_kube_is_made_from_a_kubeconfig(tmp_path: Path, settings_factory: Callable[..., Settings]) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    settings = settings_factory(backend="kube", kubeconfig=kubeconfig)
    backend = make_backend(settings)
    assert isinstance(backend, KubeBackend)
    backend.stop()


def test_without_an_api_server_it_says_what_to_set(
    settings_factory: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SettingsError, match="DSF_KUBECONFIG"):
        make_backend(settings_factory(backend="kube"))


def test_directory_backend_needs_no_kubernetes_client() -> None:
    code = "import sys, dsf.backends; sys.exit('kubernetes' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
