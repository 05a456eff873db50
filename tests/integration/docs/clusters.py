"""A hub and a managed cluster for the pages: two real API servers, with the objects of OCM and the hub.

kubectl knows them as `kind-hub`, `kind-cluster1` and `kind-cluster2`; the last two are one server.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from helm_python import HelmError

from dsf.api.types import API_VERSION, CONFIG_NAME
from dsf.kube.resources import SECRETS
from tests.integration.docs.helm import helm
from tests.integration.docs.pages import ROOT, Block, Command, needs_a_shell
from tests.support import chart
from tests.support.child import run_program
from tests.support.controlplane import ControlPlane, find
from tests.support.controlplane_crds import give_crds_to_helm, open_crd
from tests.support.stack import pass_time

NAMESPACE = "open-cluster-management"
AGENT_NAMESPACE = "dynamic-scoring"
CLUSTERS = ("cluster1", "cluster2")
#: kubectl, when a Deployment is restarted twice within a second.
_TOO_SOON = "if restart has already been triggered within the past second"
#: Kinds of each group that pages apply or query; their fields are checked elsewhere.
_FOREIGN = {
    "monitoring.coreos.com/v1": ("ServiceMonitor", "PrometheusRule"),
    "skupper.io/v2alpha1": ("Site", "AccessGrant", "AccessToken", "Connector", "Listener", "Link"),
    "route.openshift.io/v1": ("Route",),
}


class Clusters:
    """Pages run in `folder`, which looks like a checkout. A context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkout"
        self.folder.mkdir()
        for path in ROOT.iterdir():
            if path.name in ("deploy", "samples", "docs"):
                (self.folder / path.name).symlink_to(path)
        self._bin = folder / "bin"
        self._bin.mkdir()
        (self._bin / "kubectl").symlink_to(find("kubectl") / "kubectl")
        (self._bin / "dsf").symlink_to(Path(sys.executable).parent / "dsf")
        self.kubeconfig = folder / "kubeconfig"
        self.hub = ControlPlane()
        self.managed = ControlPlane(crds=False)
        #: Shell variables of the page; a test adds values of programs that are not installed here.
        self.variables: dict[str, str] = {}

    def start(self) -> Self:
        """Start both servers and create the objects that exist before the first page."""
        self.hub.start()
        self.managed.start()
        self._write_kubeconfig()
        with contextlib.closing(self.hub.session()) as session:
            give_crds_to_helm(session, chart.RELEASE, chart.NAMESPACE)
        foreign = _crds()
        for plane, objects in ((self.hub, self._on_hub()), (self.managed, self._on_managed())):
            _apply(plane, foreign)
            _apply(plane, objects)
        return self

    def stop(self) -> None:
        """End both."""
        self.hub.stop()
        self.managed.stop()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run(self, command: Command, *, render: bool = False) -> str:
        """Run a command and return its output; variables that it sets are kept. Raises AssertionError with its output.

        Helm's own are run in this process: a program would load its code each time. With `render` it changes nothing.
        """
        if command.programs == ["helm"]:
            try:
                return self._helm(command.text, render)
            except (AssertionError, HelmError, OSError, SystemExit) as error:
                # argparse has printed the error on stderr.
                raise AssertionError(f"{command.page}:{command.line}\n$ {command.text}\n{error}") from error
        variables_file = self.folder / ".variables"
        lines = [f"{name}={value!r}" for name, value in self.variables.items()]
        # `declare` fails for unset variables, after it has printed the others.
        script = "\n".join([*lines, command.text, f"declare -p HUB_IP DSF > {variables_file} 2>/dev/null || true"])
        process = self._typed(script)
        if _TOO_SOON in process.stderr:
            # A person is never so fast.
            pass_time(1.1)
            process = self._typed(script)
        assert process.returncode == 0, (
            f"{command.page}:{command.line}\n$ {command.text}\n{process.stdout}{process.stderr}"
        )
        self.variables |= dict(re.findall(r'^declare \S+ (\w+)="(.*)"$', variables_file.read_text(), re.MULTILINE))
        return process.stdout

    def write_files(self, blocks: Iterable[Block]) -> None:
        """Write the files that a page shows, named in their first line."""
        for block in blocks:
            if name_match := re.match(r"# ([\w-]+\.yaml)\b", block.text):
                (self.folder / name_match[1]).write_text(block.text)

    def install(self) -> None:
        """Install the chart as `docs/install.md` does, if a page needs it and the previous one has removed it."""
        with contextlib.closing(self.hub.session()) as session:
            names = [secret["metadata"]["name"] for secret in session.get(SECRETS.path(NAMESPACE))["items"]]
        if not any(name.startswith("sh.helm.release.v1.dynamic-scoring-framework.") for name in names):
            text = "helm upgrade --install dynamic-scoring-framework deploy/helm --create-namespace"
            self.run(Command("the test", 0, f"{text} --namespace {NAMESPACE}"))

    def _helm(self, text: str, render: bool) -> str:
        text, _, file = text.partition(" > ")
        for name, value in self.variables.items():
            text = text.replace(f"${name}", value)
        assert not needs_a_shell(text), f"{text}: only a shell understands this"
        with contextlib.chdir(self.folder):
            output = helm(shlex.split(text)[1:], self.kubeconfig, render=render)
            if file:
                Path(file).write_text(output)
        return output

    def _typed(self, script: str) -> subprocess.CompletedProcess[str]:
        return run_program(
            ["/bin/bash", "-o", "pipefail", "-euc", script], cwd=self.folder, env=self._environment(), timeout=180
        )

    def _environment(self) -> dict[str, str]:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("DSF_")}
        return variables | {
            "PATH": f"{self._bin}:/usr/bin:/bin",
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(self.hub.dir / "kubectl-cache"),
            "PYTHONPATH": str(ROOT),
            # kubectl collects garbage while it reads the server's API.
            "GOGC": "400",
        }

    def _write_kubeconfig(self) -> None:
        parts: dict[str, list[Any]] = {"clusters": [], "users": [], "contexts": []}
        names = {"kind-hub": self.hub} | {f"kind-{cluster}": self.managed for cluster in CLUSTERS}
        names |= {"MANAGED_CLUSTER": self.managed, "HUB": self.hub}
        for name, plane in names.items():
            kubeconfig = json.loads(plane.kubeconfig.read_text())
            parts["clusters"].append({"name": name, "cluster": kubeconfig["clusters"][0]["cluster"]})
            parts["users"].append({"name": name, "user": kubeconfig["users"][0]["user"]})
            parts["contexts"].append({"name": name, "context": {"cluster": name, "user": name}})
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "kind-hub", **parts}
        self.kubeconfig.write_text(json.dumps(config))

    def _on_hub(self) -> list[dict[str, Any]]:
        # Programs that do not run here would create: nodes (kind), accounts (Kubernetes' controllers), clusters (OCM),
        # the namespace (the omitted charts), configuration and scores (the hub controller).
        api, accepted = "cluster.open-cluster-management.io", {"hubAcceptsClient": True}
        objects = [_object("v1", "Namespace", name) for name in (NAMESPACE, "monitoring", *CLUSTERS)]
        objects.append(_object("v1", "Node", "hub-control-plane"))
        objects.append(_object("v1", "ServiceAccount", "default", NAMESPACE))
        objects.append(_object(API_VERSION, "DynamicScoringConfig", CONFIG_NAME, NAMESPACE, spec={}))
        for cluster in CLUSTERS:
            objects.append(_object(f"{api}/v1", "ManagedCluster", cluster, spec=accepted))
            objects.append(_object(f"{api}/v1alpha1", "AddOnPlacementScore", "sample-my-score", cluster))
        return objects

    def _on_managed(self) -> list[dict[str, Any]]:
        labels = {"app": "dynamic-scoring-agent"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "agent", "image": "agent"}]}}
        spec = {"selector": {"matchLabels": labels}, "template": template}
        return [
            *(_object("v1", "Namespace", name) for name in ("monitoring", AGENT_NAMESPACE)),
            _object("apps/v1", "Deployment", "dynamic-scoring-agent", AGENT_NAMESPACE, spec=spec),
            *(
                _object("v1", "Secret", name, AGENT_NAMESPACE, stringData={"token": "0123"})
                for name in ("a-scorer-token", "thanos-token")
            ),
        ]


def _apply(plane: ControlPlane, objects: list[dict[str, Any]]) -> None:
    plane.kubectl(
        "apply", "--server-side", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    )
    nodes = [o["metadata"]["name"] for o in objects if o["kind"] == "Node"]
    for name in nodes:
        status = {"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.10"}]}}
        plane.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps(status))


def _object(version: str, kind: str, name: str, namespace: str = "", **parts: Any) -> dict[str, Any]:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **parts}


def _crds() -> list[dict[str, Any]]:
    return [
        open_crd(*version.split("/"), f"{kind.lower()}s", kind) for version, kinds in _FOREIGN.items() for kind in kinds
    ]
