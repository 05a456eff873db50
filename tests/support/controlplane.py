"""A real etcd and kube-apiserver for tests: own processes, free ports, a private folder; killable and restartable.

No controller manager runs: a deleted namespace stays Terminating and owner references collect nothing. Ready in about 3
s. etcd does not sync to disk, which is safe here: nothing of it outlives the test run.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import itertools
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dsf.kube.resources import MANAGED_CLUSTERS, Resource
from dsf.kube.session import Session
from tests.support.child import Child, stopped
from tests.support.controlplane_crds import install_crds
from tests.support.redisserver import free_port
from tests.support.wait import wait_for

_SCRIPT = Path(__file__).parents[2] / "scripts" / "controlplane"
_START_TIMEOUT = 60.0
#: API server of scripts/controlplane that the tests use, such as DSF_TEST_KUBE_APISERVER=kube-apiserver-1.31.
API_SERVER = os.environ.get("DSF_TEST_KUBE_APISERVER", "kube-apiserver")

_NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
_SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
_RBAC = ("rbac.authorization.k8s.io", "v1")
_CLUSTER_ROLES = Resource(*_RBAC, "clusterroles", "ClusterRole", namespaced=False)
#: Path for reviews of a user's rights.
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_CLUSTER_ROLE_BINDINGS = Resource(*_RBAC, "clusterrolebindings", "ClusterRoleBinding", namespaced=False)


class ControlPlaneMissingError(Exception):
    """The programs are missing; the message is one line that says how to get them."""


@functools.cache
def find(*names: str) -> Path:
    """Return the folder of the named programs, or with the name `crds` that of OCM's CRDs; builds and downloads
    nothing.

    Each test process looks up an existing program once, and a missing one each time.
    """
    response = subprocess.run(
        [sys.executable, str(_SCRIPT), "--no-build", *names], capture_output=True, text=True, check=False
    )
    if response.returncode:
        lines = response.stderr.strip().splitlines()
        raise ControlPlaneMissingError(lines[-1] if lines else f"{_SCRIPT} failed")
    return Path(response.stdout.strip())


class ControlPlane:
    """A running API server with OCM's and our CRDs. `session()`, `kubectl()` and `kubeconfig` act as a cluster admin.

    Tests share it: each one makes namespaces and clusters of its own with `namespace()` and `cluster()`.
    """

    def __init__(self, *, options: Sequence[str] = (), crds: bool = True) -> None:
        """Prepare the servers. `options` are further flags of kube-apiserver.

        Raises ControlPlaneMissingError.
        """
        self._programs = find("etcd", API_SERVER, "kubectl")
        self._ocm = find("crds") if crds else None
        self._options = options
        self.dir = Path(tempfile.mkdtemp(prefix="dsf-kube-"))
        self.kubeconfig = self.dir / "kubeconfig"
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self._etcd_ports = (free_port(), free_port())
        self._etcd: Child | None = None
        self._apiserver: Child | None = None
        self._sessions: list[Session] = []
        self._numbers = itertools.count(1)

    # --- life ------------------------------------------------------------------------------------------------------

    def start(self) -> ControlPlane:
        """Start both servers and install the CRDs. Raises AssertionError with the log if one does not start."""
        self.dir.mkdir(exist_ok=True)
        (self.dir / "tokens.csv").write_text("admin-token,admin,admin,system:masters\n")
        self._make_service_account_key()
        client, peer = (f"http://127.0.0.1:{port}" for port in self._etcd_ports)
        self._etcd = Child(
            [
                str(self._programs / "etcd"),
                *("--data-dir", str(self.dir / "etcd"), "--unsafe-no-fsync", "--log-level", "error"),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"default={peer}"),
            ],
            self.dir / "etcd.log",
        )
        self.start_apiserver()
        if self._ocm is not None:
            install_crds(self._admin(), self._ocm)
        return self

    def start_apiserver(self) -> None:
        """Start the API server again after `kill_apiserver`, on the same port and with the same certificate."""
        self._apiserver = Child(
            [
                str(self._programs / API_SERVER),
                f"--etcd-servers=http://127.0.0.1:{self._etcd_ports[0]}",
                *("--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--secure-port={self.port}"),
                # The server creates a self-signed certificate there at its first start.
                f"--cert-dir={self.dir / 'certs'}",
                *(f"--token-auth-file={self.dir / 'tokens.csv'}", "--authorization-mode=RBAC"),
                "--service-account-issuer=https://dsf.test",
                f"--service-account-key-file={self._service_account_key}",
                f"--service-account-signing-key-file={self._service_account_key}",
                *("--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none"),
                *self._options,
            ],
            self.dir / "apiserver.log",
            # Fewer garbage collections, which take a seventh of its CPU at the start.
            {"GOGC": "400"},
        )
        wait_for(self._has_certificate, _START_TIMEOUT, "the API server's certificate")
        self._write_kubeconfig(self.kubeconfig, "admin-token")
        trusted = ssl.create_default_context(cafile=str(self.certificate))
        wait_for(lambda: self._is_ready(trusted), _START_TIMEOUT, f"the API server on {self.url}")

    def ensure(self) -> None:
        """Start the servers that were stopped or killed."""
        if self._etcd is None:
            self.start()
        elif self._apiserver is None:
            self.start_apiserver()

    def kill_apiserver(self) -> None:
        """Kill the API server with SIGKILL; etcd and its data stay."""
        if self._apiserver is not None:
            self._apiserver.kill()
            self._apiserver = None

    @contextlib.contextmanager
    def paused(self, program: str = "kube-apiserver") -> Iterator[None]:
        """Suspend a server with SIGSTOP: connections stay, without responses. `program` may also be `etcd`."""
        child = {"kube-apiserver": self._apiserver, "etcd": self._etcd}[program]
        assert child is not None
        with stopped(child):
            yield

    def stop(self) -> None:
        """End both servers, close the sessions that were handed out, and remove the folder."""
        for session in self._sessions:
            session.close()
        self._sessions.clear()
        self.kill_apiserver()
        if self._etcd is not None:
            self._etcd.kill()
            self._etcd = None
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self) -> ControlPlane:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- use -------------------------------------------------------------------------------------------------------

    def session(self, kubeconfig: Path | None = None, **options: int) -> Session:
        """Return a new session as admin, or with another kubeconfig. `stop` closes it, if the test did not."""
        session = Session.load(kubeconfig or self.kubeconfig, **options)
        self._sessions.append(session)
        return session

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl and return both output streams. Raises AssertionError if it fails and `check` is set."""
        response = subprocess.run(
            [str(self._programs / "kubectl"), "--kubeconfig", str(self.kubeconfig), *arguments],
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A separate discovery cache, neither the user's nor that of another control plane.
            env={**os.environ, "KUBECACHEDIR": str(self.dir / "kubectl-cache")},
            timeout=300,
            check=False,
        )
        assert not check or response.returncode == 0, f"kubectl {' '.join(arguments)}: {response.stdout}"
        return response.stdout

    def namespace(self, prefix: str = "test") -> str:
        """Create a namespace with a unique name, and return the name."""
        # Padded, so that names sort in the order of creation, and tests may compare sorted lists.
        name = f"{prefix}-{os.getpid()}-{next(self._numbers):05d}"
        self._admin().create(_NAMESPACES.path(), {"metadata": {"name": name}})
        return name

    def cluster(self, prefix: str = "cluster", *, accepted: bool = True) -> str:
        """Create a ManagedCluster with its namespace, and return its name."""
        name = self.namespace(prefix)
        self._admin().create(MANAGED_CLUSTERS.path(), _managed_cluster(name, accepted))
        return name

    def clusters(self, names: Sequence[str]) -> None:
        """Create accepted ManagedClusters with these names, with their namespaces, several at a time."""
        admin = self._admin()

        def make(name: str) -> None:
            admin.create(_NAMESPACES.path(), {"metadata": {"name": name}})
            admin.create(MANAGED_CLUSTERS.path(), _managed_cluster(name, True))

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(make, names))

    def service_account(self, namespace: str, name: str, rules: Sequence[dict[str, Any]]) -> Path:
        """Return a kubeconfig of a new ServiceAccount with the rights in `rules` (of a ClusterRole), and no others."""
        admin = self._admin()
        admin.create(_SERVICE_ACCOUNTS.path(namespace), {"metadata": {"name": name}})
        role = f"{namespace}-{name}"
        binding = {
            "metadata": {"name": role},
            "roleRef": {"apiGroup": _RBAC[0], "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": name}],
        }
        with self.granting(namespace, name, rules) as marked:
            admin.create(_CLUSTER_ROLES.path(), {"metadata": {"name": role}, "rules": marked})
            admin.create(_CLUSTER_ROLE_BINDINGS.path(), binding)
        response = admin.create(_SERVICE_ACCOUNTS.path(namespace, name, "token"), {"spec": {"expirationSeconds": 3600}})
        path = self.dir / f"kubeconfig-{role}"
        self._write_kubeconfig(path, response["status"]["token"])
        return path

    def set_rules(self, namespace: str, name: str, rules: Sequence[dict[str, Any]]) -> None:
        """Change the rights of a ServiceAccount of `service_account`, and wait until the change is effective."""
        with self.granting(namespace, name, rules) as marked:
            self._admin().merge(_CLUSTER_ROLES.path(name=f"{namespace}-{name}"), {"rules": marked})

    @contextlib.contextmanager
    def granting(self, namespace: str, name: str, rules: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
        """Yield the rules for a role of a ServiceAccount, and wait at the end until they are effective.

        The API server learns of roles by a watch, with a delay. The yielded rules contain one more, about a resource
        that does not exist, whose review shows when they are effective.
        """
        marker = f"marker-{next(self._numbers)}"
        resource = {"group": "test.dsf", "resource": "markers", "name": marker, "verb": "get"}
        yield [
            *rules,
            {"apiGroups": ["test.dsf"], "resources": ["markers"], "resourceNames": [marker], "verbs": ["get"]},
        ]
        user = f"system:serviceaccount:{namespace}:{name}"
        review = {"spec": {"user": user, "resourceAttributes": {**resource, "namespace": namespace}}}
        wait_for(lambda: self._admin().create(_REVIEWS, review)["status"]["allowed"], 20, f"the rights of {user}")

    @property
    def is_running(self) -> bool:
        """True between start and stop."""
        return self._etcd is not None

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of both servers, by name."""
        assert self._etcd is not None
        assert self._apiserver is not None
        return {"kube-apiserver": self._apiserver.pid, "etcd": self._etcd.pid}

    @property
    def certificate(self) -> Path:
        """The API server's certificate, which is self-signed."""
        return self.dir / "certs" / "apiserver.crt"

    # --- parts -----------------------------------------------------------------------------------------------------

    @property
    def _service_account_key(self) -> Path:
        return self.dir / "service-accounts.key"

    def _make_service_account_key(self) -> None:
        openssl = shutil.which("openssl")
        if openssl is None:
            raise ControlPlaneMissingError("the control plane needs a key for ServiceAccounts: install openssl")
        command = f"ecparam -name prime256v1 -genkey -noout -out {self._service_account_key}".split()
        subprocess.run([openssl, *command], capture_output=True, check=True)

    def _write_kubeconfig(self, path: Path, token: str) -> None:
        authority = base64.b64encode(self.certificate.read_bytes()).decode()
        cluster = {"server": self.url, "certificate-authority-data": authority}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        path.write_text(json.dumps(config))  # JSON is YAML.

    def _has_certificate(self) -> bool:
        self._check_running()
        # The file is empty at first.
        return self.certificate.exists() and self.certificate.read_text().endswith("-----END CERTIFICATE-----\n")

    def _check_running(self) -> None:
        for child in (self._etcd, self._apiserver):
            if child is None or not child.is_running:
                raise RuntimeError(f"the control plane ended: {child.tail() if child else 'not started'}")

    def _is_ready(self, trusted: ssl.SSLContext) -> bool:
        self._check_running()
        request = urllib.request.Request(f"{self.url}/readyz", headers={"Authorization": "Bearer admin-token"})
        try:
            with urllib.request.urlopen(request, context=trusted, timeout=10) as response:
                return bool(response.status == 200)
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            raise AssertionError(str(error)) from None

    def _admin(self) -> Session:
        if not self._sessions:
            self.session()
        return self._sessions[0]


def _managed_cluster(name: str, accepted: bool) -> dict[str, Any]:
    return {
        "apiVersion": MANAGED_CLUSTERS.api_version,
        "kind": MANAGED_CLUSTERS.kind,
        "metadata": {"name": name},
        "spec": {"hubAcceptsClient": accepted},
    }
