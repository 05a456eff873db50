"""Plays a node of a cluster without containers: mounts what a pod names, and starts its program with its environment.

Places differ from those in a pod: folders instead of mount paths, free ports instead of fixed ones, a kubeconfig with
the ServiceAccount's token instead of the mounted one, localhost instead of a Service's name. All of it is replaced in
the pod's own texts: a variable, an argument or a file that the chart forgets is missing here too.
"""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from deploy.tests.integration.hubcluster import HubCluster
from dsf.errors import ObjectNotFoundError
from dsf.kube.resources import CONFIG_MAPS, SECRETS
from dsf.kube.session import Session
from tests.support import chart
from tests.support.child import Child
from tests.support.redisserver import free_port
from tests.support.secureredis import path_with_redis
from tests.support.wait import wait_for

#: The programs of images, here.
_PROGRAMS = {"/bin/sh": "/bin/sh"}
#: Command of our images, which run with `args` only.
_ENTRY_POINT = [sys.executable, "-P", "-m", "dsf.cli"]


class Pod:
    """A pod with one container, and its init containers."""

    def __init__(self, node: Node, workload: chart.Object, name: str) -> None:
        self.name = name
        self.folder = node.folder / name
        self.ports: dict[str, int] = {}
        self.child: Child | None = None
        self._node = node
        self._namespace = workload["metadata"]["namespace"]
        self._spec = chart.pod(workload)
        self._places: dict[str, str] = {}
        (self._container,) = self._spec["containers"]

    def start(self, **extra_variables: str) -> Pod:
        """Mount, run the init containers, start the program. `extra_variables` only matter outside a pod."""
        for port in self._container.get("ports", []):
            self.ports[port["name"]] = self._node.port(self.name, port["containerPort"])
        volumes = {volume["name"]: volume for volume in self._spec["volumes"]}
        containers = [*self._spec.get("initContainers", []), self._container]
        for mount in [mount for container in containers for mount in container["volumeMounts"]]:
            mount_folder = self.folder / mount["name"]
            self._places[mount["mountPath"]] = str(mount_folder)
        for name in {mount["name"] for container in containers for mount in container["volumeMounts"]}:
            # A StatefulSet's claim is in no volume.
            self._fill(self.folder / name, volumes.get(name, {}))
        for container in self._spec.get("initContainers", []):
            subprocess.run(self._command(container), env=self._environment(container), check=True, timeout=300)
        environment = self._environment(self._container) | extra_variables
        if self._spec["automountServiceAccountToken"]:
            account = self._spec["serviceAccountName"]
            environment["DSF_KUBECONFIG"] = str(self._node.cluster.kubeconfig_of(self._namespace, account))
        self.child = Child(self._command(self._container), self.folder / "log", environment, inherit=False)
        return self

    def passes(self, probe: str) -> bool:
        """True if it passes one of its probes, as the kubelet checks it."""
        assert self.child is not None
        assert self.child.is_running, self.child.tail()
        probe_spec = self._container[probe]
        if "exec" in probe_spec:
            command = [self._replace_places(text) for text in probe_spec["exec"]["command"]]
            return subprocess.run(command, check=False, timeout=300, capture_output=True).returncode == 0
        port, path = self.ports[probe_spec["httpGet"]["port"]], probe_spec["httpGet"]["path"]
        return self.get(port, path)[0] == 200

    def get(self, port: int, path: str) -> tuple[int, str]:
        """Return status and text of a page; 0 without a response."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=300) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def _fill(self, folder: Path, volume: chart.Object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if "secret" in volume:
            secret = volume["secret"]
            data = self._node.read(SECRETS, self._namespace, secret["secretName"])
            files = {key: base64.b64decode(text).decode() for key, text in data.items()}
            items = secret.get("items")
        elif "configMap" in volume:
            config_map = volume["configMap"]
            files = self._node.read(CONFIG_MAPS, self._namespace, config_map["name"])
            items = config_map.get("items")
        else:
            return
        for item in items or [{"key": key, "path": key} for key in files]:
            # A configuration names paths of its pod, and a port.
            (folder / item["path"]).write_text(self._replace_places(files[item["key"]]))

    def _command(self, container: chart.Object) -> list[str]:
        arguments = [self._replace_places(text) for text in container.get("args", [])]
        if "command" not in container:
            return [*_ENTRY_POINT, *arguments]
        program, *arguments_of_command = container["command"]
        return [_PROGRAMS[program], *(self._replace_places(text) for text in arguments_of_command), *arguments]

    def _environment(self, container: chart.Object) -> dict[str, str]:
        variables = {"PATH": path_with_redis(), "PYTHONPATH": str(chart.ROOT), "HOME": str(self.folder)}
        for entry in container.get("env", []):
            source: Any = entry.get("valueFrom")
            if source is None:
                text = re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], entry.get("value", ""))
                variables[entry["name"]] = self._replace_places(text)
            elif "fieldRef" in source:
                assert source["fieldRef"]["fieldPath"] == "metadata.namespace"
                variables[entry["name"]] = self._namespace
            else:
                reference = source["secretKeyRef"]
                data = self._node.read(SECRETS, self._namespace, reference["name"])
                variables[entry["name"]] = base64.b64decode(data[reference["key"]]).decode()
        return variables

    def _replace_places(self, text: str) -> str:
        """Replace places in a text of the manifests by ours, all in one pass, because one may look like another."""
        if text.isdigit() and (self.name, int(text)) in self._node.fixed:
            return str(self._node.fixed[self.name, int(text)])
        paths = "|".join(re.escape(path) for path in sorted(self._places, key=len, reverse=True))
        text = re.sub(rf"(?<![\w./-])({paths})(?=/|\s|$)", lambda match: self._places[match[1]], text)
        for address_in_pod, local_address in self._node.hosts.items():
            text = text.replace(address_in_pod, local_address)
        return text


class Node:
    """Starts pods of one API server; `hosts` are names and ports in manifests, and what they are here."""

    def __init__(self, cluster: HubCluster, session: Session, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.hosts: dict[str, str] = {}
        #: (pod, port in its manifest) -> port here.
        self.fixed: dict[tuple[str, int], int] = {}
        self.pods: dict[str, Pod] = {}
        self._session = session

    def port(self, pod: str, port: int) -> int:
        """The port here of a pod's port."""
        return self.fixed.setdefault((pod, port), free_port())

    def run(self, workload: chart.Object, name: str, **extra_variables: str) -> Pod:
        """Start a pod of a workload."""
        self.pods[name] = Pod(self, workload, name).start(**extra_variables)
        return self.pods[name]

    def read(self, resource: Any, namespace: str, name: str) -> dict[str, str]:
        """The data of a Secret or ConfigMap, once it is there: until then a pod waits."""

        def found_object() -> dict[str, str] | None:
            try:
                data: dict[str, str] = self._session.get(resource.path(namespace, name))["data"]
            except ObjectNotFoundError:
                return None
            return data

        return wait_for(found_object, 30, f"{resource.kind} {namespace}/{name}; {self.logs()}")

    def until(self, condition: Any, message: str, timeout: float = 60.0) -> Any:
        """Wait for a condition; a failure quotes the ends of the logs."""
        try:
            return wait_for(condition, timeout, message)
        except (AssertionError, RuntimeError) as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(f"--- {pod.name}\n{pod.child.tail()[-1500:]}" for pod in self.pods.values() if pod.child)

    def stop(self) -> None:
        """End all pods."""
        for pod in self.pods.values():
            if pod.child is not None:
                pod.child.kill()
