"""Stand-ins for `kind`, `clusteradm` and `docker`, as a reader of docs/quickstart.md types them, for the clusters
here.

They accept only the commands of pages, and refuse anything else. kubectl, helm and `docker build` are the real ones.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from tests.node.lab import clusters, engine, folders, images, network, ocm
from tests.node.lab.command import LabError, run

_TOKEN = "clusteradm join --hub-token played --hub-apiserver played --cluster-name <cluster_name>"


def kind(command_line: list[str]) -> None:
    """kind create cluster | load docker-image | delete clusters."""
    parser = argparse.ArgumentParser(prog="kind")
    parser.add_argument("verb", choices=["create", "load", "delete"])
    parser.add_argument("what", choices=["cluster", "clusters", "docker-image"])
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--name", default="kind")
    arguments = parser.parse_args(command_line)
    match arguments.verb, arguments.what:
        case "create", "cluster":
            clusters.up(arguments.name)
        case "load", "docker-image":
            images.load(clusters.cluster(arguments.name).node, *arguments.rest)
        case "delete", "clusters":
            clusters.down(*arguments.rest)
        case _:
            raise LabError(f"kind {' '.join(command_line)}: not known here")


def clusteradm(command_line: list[str]) -> None:
    """clusteradm init | get token | join | accept."""
    parser = argparse.ArgumentParser(prog="clusteradm")
    parser.add_argument("verb", choices=["init", "get", "join", "accept"])
    parser.add_argument("what", nargs="?")
    parser.add_argument("--context", required=True)
    parser.add_argument("--clusters", default="")
    parser.add_argument("--cluster-name")
    for option in ("--hub-token", "--hub-apiserver"):
        parser.add_argument(option)
    for flag in ("--wait", "--force-internal-endpoint-lookup"):
        parser.add_argument(flag, action="store_true")
    arguments = parser.parse_args(command_line)
    where = clusters.cluster(arguments.context.removeprefix("kind-"))
    match arguments.verb, arguments.what:
        case "init", None:
            ocm.init(where, clusters.crds())
        case "get", "token":
            print(_TOKEN)
        case "join", None:
            ocm.join(where, clusters.cluster("hub"), clusters.crds())
        case "accept", None:
            ocm.accept(where, *arguments.clusters.split(","))
        case _:
            raise LabError(f"clusteradm {' '.join(command_line)}: not known here")


def docker(command_line: list[str]) -> None:
    """Stand-in for docker: build with the machine's network, tags and ids of images, and `docker inspect` of a node
    that kind would run as a container.
    """
    if command_line[:1] == ["build"]:
        os.execvp(
            "env",
            [
                "env",
                "DOCKER_BUILDKIT=0",
                *engine.docker("build", "--network=host", *engine.without_digests(command_line[1:])),
            ],
        )
    if command_line[:1] == ["tag"] or command_line[:2] == ["image", "inspect"]:
        command = engine.docker(*command_line)
        os.execvp(command[0], command)
    if command_line[:1] == ["inspect"] and command_line[-1].endswith("-control-plane"):
        print(clusters.cluster(command_line[-1].removesuffix("-control-plane")).address)
        return
    raise LabError(f"docker {' '.join(command_line)}: not known here")


STAND_INS: dict[str, Callable[[list[str]], None]] = {"kind": kind, "clusteradm": clusteradm, "docker": docker}


def folder() -> Path:
    """Return a folder for PATH with the stand-ins, and the real kubectl and helm."""
    path = folders.RUN / "bin"
    targets = {name: clusters.programs() / name for name in ("kubectl", "helm")}
    if all((path / name).is_symlink() and (path / name).readlink() == target for name, target in targets.items()):
        return path
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    script = folders.ROOT / "scripts" / "node"
    for name in STAND_INS:
        (path / name).write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(script)])} stand-in {name} "$@"\n')
        (path / name).chmod(0o755)
    for name, target in targets.items():
        (path / name).symlink_to(target)
    return path


def add_chart_repository() -> None:
    """Serve stand-ins for the charts that `helm repo add` of a page fetches."""
    target = folders.RUN / "prometheus-community"
    if not target.exists():
        run("cp", "-r", folders.HERE / "charts", target)


def environment() -> dict[str, str]:
    """Return the variables of a shell for a page's commands; it must run in the network of the nodes."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("KUBE", "HELM_", "DSF_"))},
        "PATH": f"{folder()}:{os.environ['PATH']}",
        "KUBECONFIG": str(folders.RUN / "kubeconfig"),
        "KUBECACHEDIR": str(folders.RUN / "kubectl"),
        "HELM_CACHE_HOME": str(folders.RUN / "helm"),
        "HELM_CONFIG_HOME": str(folders.RUN / "helm"),
        "HELM_DATA_HOME": str(folders.RUN / "helm"),
    }


def shell() -> list[str]:
    """Return the command prefix of such a shell."""
    return network.inside(network.LAN)
