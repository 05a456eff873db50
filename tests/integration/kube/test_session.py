"""Requests to a real API server."""

from __future__ import annotations

import contextlib
import datetime
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from kubernetes.config import incluster_config

from dsf.errors import ObjectConflictError, ObjectNotFoundError, SettingsError
from dsf.kube.resources import CONFIG_MAPS
from dsf.kube.session import ApiServerError, ForbiddenError, Session, UnreachableError
from tests.support.apirelay import ApiServerRelay
from tests.support.controlplane import ControlPlane
from tests.support.wait import PATIENCE


class _ShiftedDatetime:
    """Replaces the module `datetime` in the client. Its clock is some minutes ahead."""

    def __init__(self, minutes: int) -> None:
        self._ahead = datetime.timedelta(minutes=minutes)
        self.datetime, self.timedelta = self, datetime.timedelta

    def now(self) -> datetime.datetime:
        return datetime.datetime.now() + self._ahead  # noqa: DTZ005 (as the client does it)


def test_refusals_raise_their_own_errors(control_plane: ControlPlane, session: Session) -> None:
    namespace = control_plane.namespace()
    body = {"metadata": {"name": "a"}}
    created = session.create(CONFIG_MAPS.path(namespace), body)
    with pytest.raises(ObjectConflictError, match='configmaps "a" already exists'):
        session.create(CONFIG_MAPS.path(namespace), body)
    session.merge(CONFIG_MAPS.path(namespace, "a"), {"data": {"x": "1"}})
    with pytest.raises(ObjectConflictError, match="the object has been modified"):
        session.replace(CONFIG_MAPS.path(namespace, "a"), created)
    with pytest.raises(ObjectConflictError):
        session.delete(CONFIG_MAPS.path(namespace, "a"), uid="another")
    with pytest.raises(ObjectNotFoundError, match=f"GET /api/v1/namespaces/{namespace}/configmaps/b: 404"):
        session.get(CONFIG_MAPS.path(namespace, "b"))
    with pytest.raises(ApiServerError, match=r"422: .*Invalid value") as caught:
        session.create(CONFIG_MAPS.path(namespace), {"metadata": {"name": "NOT A NAME"}})
    assert caught.value.status == 422


def test_invalid_token_is_reported_without_being_shown(control_plane: ControlPlane, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(control_plane.kubeconfig.read_text().replace("admin-token", "stale-token"))
    with (
        contextlib.closing(Session.load(kubeconfig)) as session,
        pytest.raises(ApiServerError, match=r"401: .*not valid") as caught,
    ):
        session.get(CONFIG_MAPS.path("default"))
    assert "stale-token" not in str(caught.value)


def test_session_without_configuration_names_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SettingsError, match="DSF_KUBECONFIG"):
        Session.load()
    with pytest.raises(SettingsError, match="DSF_KUBECONFIG"):
        Session.load(tmp_path / "missing")


def test_pod_session_uses_its_account_and_a_rotated_token(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = urlsplit(control_plane.url)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(parts.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(parts.port))
    token = tmp_path / "token"
    token.write_text("first-token")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(control_plane.certificate))
    with contextlib.closing(Session.load()) as session:
        with pytest.raises(ApiServerError, match="401"):
            session.get(CONFIG_MAPS.path("default"))
        token.write_text("admin-token")
        # The client uses a token for one minute before it reads the file again: now at +2 and then at +4 minutes.
        monkeypatch.setattr(incluster_config, "datetime", _ShiftedDatetime(minutes=2))
        assert session.get(CONFIG_MAPS.path("default"))["kind"] == "ConfigMapList"
        token.unlink()
        monkeypatch.setattr(incluster_config, "datetime", _ShiftedDatetime(minutes=4))
        with pytest.raises(UnreachableError, match="cannot read the credentials"):
            session.get(CONFIG_MAPS.path("default"))


def test_many_threads_share_the_connections(control_plane: ControlPlane, caplog: pytest.LogCaptureFixture) -> None:
    namespace = control_plane.namespace()
    with (
        caplog.at_level(logging.DEBUG, "urllib3"),
        contextlib.closing(control_plane.session()) as session,
        ThreadPoolExecutor(16) as pool,
    ):
        created = list(
            pool.map(lambda n: session.create(CONFIG_MAPS.path(namespace), {"metadata": {"name": f"c{n}"}}), range(64))
        )
    assert len({config_map["metadata"]["uid"] for config_map in created}) == 64
    opened = sum("Starting new HTTPS connection" in record.getMessage() for record in caplog.records)
    assert 1 <= opened <= 16
    assert not any("pool is full" in record.getMessage() for record in caplog.records)


def test_outage_is_reported_at_once_and_its_end_needs_no_second_try(control_plane: ControlPlane) -> None:
    path = CONFIG_MAPS.path("default")
    with ApiServerRelay(control_plane) as relay, contextlib.closing(Session.load(relay.kubeconfig)) as session:
        session.get(path)
        relay.cut()
        began = time.monotonic()
        with pytest.raises(UnreachableError, match=f"cannot reach {relay.server}: "):
            session.get(path)
        assert time.monotonic() - began < PATIENCE
        relay.restore()
        session.get(path)
        relay.cut()
        relay.restore()
        # The pooled connection was cut; the session must open a new one by itself.
        session.get(path)
        with relay.stalled():
            began = time.monotonic()
            with pytest.raises(UnreachableError):
                session.request("GET", path, timeout=(0.5, 0.5))
            assert time.monotonic() - began < PATIENCE


def test_session_names_a_missing_permission(control_plane: ControlPlane) -> None:
    namespace = control_plane.namespace()
    limited = control_plane.service_account(namespace, "limited", [])
    expected_message = f'cannot delete resource "configmaps" in API group "" in the namespace "{namespace}"'
    with (
        contextlib.closing(control_plane.session(limited)) as session,
        pytest.raises(ForbiddenError, match=expected_message),
    ):
        session.delete(CONFIG_MAPS.path(namespace, "a"))
