"""A container engine of our own: builds images with the machine's network, runs compose projects in a network without a
way out. The machine's own engine is never used: its images and networks stay as they are.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

from tests.node.lab import folders, network
from tests.node.lab.command import LabError, run, succeeds
from tests.node.lab.daemon import Daemon
from tests.node.lab.noderuntime import unmount_below

SOCKET = folders.RUN / "docker.sock"
_DAEMON = Daemon("dockerd")
#: Which network it runs in.
_WHERE = folders.RUN / "docker.network"
#: No bridge and no firewall rules on the machine: builds use its network as any program does.
_ON_THE_MACHINE = ("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false")
_IN_A_NAMESPACE = ("--bip=172.30.0.1/24", "--default-address-pool=base=172.31.0.0/16,size=24")


def start(namespace: str = "") -> None:
    """Start it in that network namespace, or in the machine's network; it moves if it runs elsewhere."""
    if _DAEMON.pid is not None and _WHERE.read_text() == namespace:
        return
    stop()
    if namespace:
        network.make(namespace)
    root = folders.CACHE / "docker"
    root.mkdir(parents=True, exist_ok=True)
    _WHERE.write_text(namespace)
    _DAEMON.start(
        *("dockerd", f"--data-root={root}", f"--exec-root={folders.RUN / 'docker'}", f"--host=unix://{SOCKET}"),
        *(f"--pidfile={folders.RUN / 'docker.pid'}", "--exec-opt=native.cgroupdriver=cgroupfs", "--log-level=warn"),
        *("--storage-driver=overlay2", *(_IN_A_NAMESPACE if namespace else _ON_THE_MACHINE)),
        namespace=namespace,
    )
    deadline = time.monotonic() + 90
    while not succeeds(*docker("version")):
        if time.monotonic() > deadline or _DAEMON.pid is None:
            raise LabError(f"dockerd does not come up ({_DAEMON.log}):\n{_DAEMON.log.read_text()[-2000:]}")
        time.sleep(0.2)


def stop() -> None:
    """End it and every container of it; images stay."""
    if _DAEMON.pid is not None:
        with contextlib.suppress(LabError):
            if containers := run(*docker("ps", "--all", "--quiet")).split():
                run(*docker("rm", "--force", "--volumes", *containers))
    _DAEMON.stop(timeout=30)
    for pid in _leftovers():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    unmount_below(folders.RUN / "docker", folders.CACHE / "docker")


def docker(*arguments: str | Path) -> list[str]:
    """Return the command line of its client."""
    return [_client(), f"--host=unix://{SOCKET}", *(str(argument) for argument in arguments)]


@functools.cache
def _client() -> str:
    """Return the engine's own client, even if a stand-in of the same name comes first on PATH."""
    path_folders = [folder for folder in os.environ["PATH"].split(":") if folder != str(folders.RUN / "bin")]
    return shutil.which("docker", path=":".join(path_folders)) or "docker"


def build(context: Path, tag: str, *options: str | Path) -> None:
    """Build an image with the machine's network. Raises LabError with the end of the build's output."""
    log = folders.LOGS / f"image-{tag.replace('/', '-').replace(':', '-')}.log"
    command = docker("build", "--network=host", *without_digests(["--tag", tag, *map(str, options), str(context)]))
    # Docker reuses layers of earlier builds; BuildKit is not in Debian's package.
    run("env", "DOCKER_BUILDKIT=0", *command, timeout=1800, log=log)


def without_digests(arguments: list[str]) -> list[str]:
    """Return the arguments of `docker build` for a Dockerfile whose base images have tags without digests.

    A stand-in can have the tag of an image, but never its digest.
    """
    options = list(arguments)
    dockerfile = Path(options[-1]) / "Dockerfile"
    if "--file" in options:
        number = options.index("--file")
        dockerfile = Path(options[number + 1])
        del options[number : number + 2]
    text = re.sub(r"@sha256:[0-9a-f]{64}\b", "", dockerfile.read_text(encoding="utf-8"))
    copy = folders.CACHE / "dockerfiles" / hashlib.sha256(text.encode()).hexdigest()[:16]
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(text, encoding="utf-8")
    return ["--file", str(copy), *options]


def image_id(image: str) -> str:
    """Return the id of an image; empty if there is no image of this name."""
    process = subprocess.run(
        docker("image", "inspect", "--format={{.Id}}", image), capture_output=True, text=True, check=False
    )
    return process.stdout.strip()


def _leftovers() -> list[int]:
    """containerd and shims of a dockerd that was killed: they name its folder."""
    pids = []
    mark = str(folders.RUN / "docker").encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes()
            if mark in command and b"containerd" in command.split(b"\0")[0]:
                pids.append(int(folder.name))
    return pids
