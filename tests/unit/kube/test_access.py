"""Access to the API server: from a pod, with reloaded certificates and current tokens."""

from __future__ import annotations

import base64
import contextlib
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.config import incluster_config

from dsf.errors import SettingsError
from dsf.kube.session import Session, UnreachableError
from tests.support.httpserver import ScriptedServer, answer
from tests.support.tlsca import Certificate, TestCa


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> TestCa:
    return TestCa(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def certificate(ca: TestCa) -> Certificate:
    """Return certificates of the server and of its client."""
    return ca.issue("127.0.0.1", "localhost")


@pytest.fixture
def server(ca: TestCa, certificate: Certificate) -> Iterator[ScriptedServer]:
    """Run an API server that verifies client certificates and closes each connection."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(ca.cert))
    context.load_cert_chain(certificate.cert, certificate.key)
    context.verify_mode = ssl.CERT_OPTIONAL
    with ScriptedServer(answer({"kind": "Status"}, Connection="close"), tls=context) as scripted_server:
        yield scripted_server


def kubeconfig(folder: Path, server: str, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    file = folder / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "clusters": [{"name": "here", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "me", "user": user}],
    }
    file.write_text(yaml.safe_dump(document))
    return file


def test_pod_connects_to_its_api_server_directly(
    server: ScriptedServer, ca: TestCa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
    token = tmp_path / "token"
    token.write_text("a-token")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(ca.cert))
    with contextlib.closing(Session.load()) as session:
        for _ in range(2):
            assert session.get("/version") == {"kind": "Status"}


def test_from_outside_the_proxy_of_the_environment_is_used(
    server: ScriptedServer, ca: TestCa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behaves like client-go, unless the kubeconfig names a CA."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    file = kubeconfig(tmp_path, server.url, {"certificate-authority": str(ca.cert)}, {})
    with contextlib.closing(Session.load(file)) as session, pytest.raises(UnreachableError, match="ProxyError"):
        session.get("/version")


def test_certificates_of_a_kubeconfig_outlive_the_temporary_folder(
    server: ScriptedServer, ca: TestCa, certificate: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    data = {name: base64.b64encode(path.read_bytes()).decode() for name, path in certificate._asdict().items()}
    authority = {"certificate-authority-data": base64.b64encode(ca.cert.read_bytes()).decode()}
    user = {"client-certificate-data": data["cert"], "client-key-data": data["key"]}
    with contextlib.closing(Session.load(kubeconfig(tmp_path, server.url, authority, user))) as session:
        for file in folder.iterdir():
            file.unlink()
        for _ in range(2):
            assert session.get("/version") == {"kind": "Status"}


def test_certificates_in_files_are_read_again(
    server: ScriptedServer, ca: TestCa, certificate: Certificate, tmp_path: Path
) -> None:
    authority = tmp_path / "ca.crt"
    authority.write_bytes(TestCa(tmp_path / "other").cert.read_bytes())
    file = kubeconfig(tmp_path, server.url, {"certificate-authority": "ca.crt"}, {})
    with contextlib.closing(Session.load(file)) as session:
        with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
            session.get("/version")
        authority.write_text("unfinished")
        with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
            session.get("/version")
        authority.write_bytes(ca.cert.read_bytes())
        assert session.get("/version") == {"kind": "Status"}
        authority.unlink()
        assert session.get("/version") == {"kind": "Status"}


def test_token_file_is_read_like_client_go(server: ScriptedServer, ca: TestCa, tmp_path: Path) -> None:
    token = tmp_path / "token"
    # `kubectl create token NAME > token` writes a final line break.
    token.write_text("first\n")
    # A tokenFile is relative to the kubeconfig and takes precedence over a token.
    file = kubeconfig(
        tmp_path, server.url, {"certificate-authority": str(ca.cert)}, {"tokenFile": "token", "token": "old"}
    )
    with contextlib.closing(Session.load(file)) as session:
        for text in ("first\n", " second \n\n", ""):
            token.write_text(text)
            session.get("/version")
        token.unlink()
        session.get("/version")
    assert [request.headers["Authorization"] for request in server.requests] == ["Bearer first", *["Bearer second"] * 3]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("users:\n- name: me\n  user: {token: very-secret\ncontexts: [", "is no YAML: line 4: "),
        ("\tvery-secret", "is no YAML: line 1: "),
        ("very-secret\x00", "is no YAML"),
        ("very-secret", "is no kubeconfig"),
        ("[very-secret]", "is no kubeconfig"),
        ("contexts: very-secret", "kubeconfig"),
        ("{}", "DSF_KUBECONFIG"),
        ("", "DSF_KUBECONFIG"),
    ],
)
def test_invalid_kubeconfig_is_reported_on_one_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        Session.load(file)
    assert words in str(caught.value)
    assert "very-secret" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_unusable_certificates_are_reported(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("no certificate")
    file = kubeconfig(tmp_path, "https://127.0.0.1:1", {"certificate-authority": "ca.crt"}, {})
    with pytest.raises(SettingsError, match=r"the certificates for https://127\.0\.0\.1:1 cannot be used"):
        Session.load(file)


def _part(file: Path, **fields: Any) -> Path:
    """Write a kubeconfig with these fields only."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **fields}))
    return file


def _merged(*files: Path) -> Path:
    return Path(os.pathsep.join(map(str, files)))


def test_several_kubeconfigs_are_merged_as_by_client_go(server: ScriptedServer, ca: TestCa, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "ca.crt").write_bytes(ca.cert.read_bytes())
    cluster = {"name": "c", "cluster": {"server": server.url, "certificate-authority": "ca.crt"}}
    # Paths are relative to the file that has them, as for the authority above.
    user = {"name": "u", "user": {"tokenFile": "token"}}
    clusters = _part(tmp_path / "a" / "clusters", clusters=[cluster])
    users = _part(
        tmp_path / "b" / "users",
        users=[user],
        contexts=[{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        **{"current-context": "x"},
    )
    (tmp_path / "b" / "token").write_text("of-b")
    # The first file that sets a name or the current context wins.
    late = _part(
        tmp_path / "c" / "late",
        clusters=[{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        users=[{"name": "u", "user": {"token": "of-c"}}],
        contexts=[{"name": "y", "context": {"cluster": "c", "user": "u"}}],
        **{"current-context": "y"},
    )
    empty = tmp_path / "empty"
    empty.write_text("")
    for files in ([clusters, users], [clusters, users, late], [empty, clusters, tmp_path / "none", users, users, late]):
        with contextlib.closing(Session.load(_merged(*files))) as session:
            assert session.get("/version") == {"kind": "Status"}
        assert server.requests[-1].headers["Authorization"] == "Bearer of-b"


def test_missing_kubeconfigs_are_named(tmp_path: Path) -> None:
    files = tmp_path / "a", tmp_path / "b"
    for missing_files in (files[:1], files):
        with pytest.raises(SettingsError) as caught:
            Session.load(_merged(*missing_files))
        for file in missing_files:
            assert str(file) in str(caught.value)
        assert "DSF_KUBECONFIG" in str(caught.value)


def test_unreadable_kubeconfigs_are_named(server: ScriptedServer, tmp_path: Path) -> None:
    file = kubeconfig(tmp_path, server.url, {}, {})
    (tmp_path / "folder").mkdir()
    for broken in (_part(tmp_path / "broken"), tmp_path / "folder"):
        if broken.is_file():
            broken.write_text("a: [")
        with pytest.raises(SettingsError) as caught:
            Session.load(_merged(file, broken))
        assert str(broken) in str(caught.value)
        assert str(file) not in str(caught.value).replace(str(broken), "")


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ({"exec": {"command": "no-such-command"}}, "the command no-such-command (exec) gave no credentials"),
        ({"exec": {"command": "false"}}, "the command false (exec) gave no credentials"),
        ({"auth-provider": {"name": "gcp", "config": {"cmd-path": "false", "cmd-args": "x"}}}, "cmd-path"),
        ({"token": "abc", "as": "jane", "as-groups": ["viewers"]}, "acts as somebody else (as, as-groups)"),
        ({"token": "very-secret\nvery-secret"}, "line break"),
    ],
)
def test_users_without_usable_credentials_are_refused(tmp_path: Path, user: dict[str, Any], words: str) -> None:
    """The official client ignores most of them, and all requests would be anonymous."""
    if "exec" in user:
        user["exec"] |= {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
    with pytest.raises(SettingsError) as caught:
        Session.load(kubeconfig(tmp_path, "https://127.0.0.1:1", {}, user))
    assert words in str(caught.value)
    assert "very-secret" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_token_may_end_with_a_line_break(server: ScriptedServer, ca: TestCa, tmp_path: Path) -> None:
    """A block of YAML does."""
    file = kubeconfig(tmp_path, server.url, {"certificate-authority": str(ca.cert)}, {"token": "abc\n"})
    with contextlib.closing(Session.load(file)) as session:
        for _ in range(3):
            session.get("/version")
    assert [request.headers["Authorization"] for request in server.requests] == ["Bearer abc"] * 3


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ({"proxy-url": "socks5://127.0.0.1:1"}, "PySocks"),
        ({"server": ""}, "has no server"),
        ({"server": "https://"}, "has no server"),
    ],
)
def test_unusable_clusters_are_refused(tmp_path: Path, cluster: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        Session.load(kubeconfig(tmp_path, "https://127.0.0.1:1", cluster, {}))


def test_user_of_no_file_is_refused(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path, "https://127.0.0.1:1", {}, {})
    file.write_text(file.read_text().replace("user: me", "user: nobody"))
    with pytest.raises(SettingsError, match="no user 'nobody'"):
        Session.load(file)


@pytest.mark.parametrize("name", ["~nobody-of-this-machine/config", "/proc/1/root/config", "/dev/null/config"])
def test_unreachable_paths_are_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="kubeconfig"):
        Session.load(Path(name))


@pytest.mark.parametrize("change", [lambda text: "\ufeff" + text, lambda text: text.replace("\n", "\r\n")])
def test_kubeconfigs_of_windows_are_read(
    server: ScriptedServer, ca: TestCa, tmp_path: Path, change: Callable[[str], str]
) -> None:
    file = kubeconfig(tmp_path, server.url, {"certificate-authority": str(ca.cert)}, {"token": "abc"})
    file.write_bytes(change(file.read_text()).encode())
    with contextlib.closing(Session.load(file)) as session:
        assert session.get("/version") == {"kind": "Status"}
