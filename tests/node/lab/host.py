"""The machine: installs or reports missing programs, and detects its properties."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.node.lab import folders
from tests.node.lab.command import CannotRunError, run, say, succeeds

#: All packages that may be installed: an engine for images, tools for containers, and tools for networks.
PACKAGES = (
    *("docker.io", "docker-compose", "runc", "containernetworking-plugins", "mmdebstrap"),
    *("iptables", "nftables", "conntrack", "ipset", "iproute2", "socat", "ethtool", "catatonit", "openssl", "kmod"),
)
#: kubelet, containerd and kube-proxy watch files; the usual 128 is for one user's desktop.
_INOTIFY = 1024
_CAP_SYS_ADMIN, _CAP_SYS_RESOURCE = 21, 24


def reason_against() -> str:
    """Return why this machine cannot run nodes, with a remedy; empty if it can."""
    if os.geteuid():
        return "real pods need root: run `sudo make node`, or `make node NODE=kind` where docker and kind are"
    if not has_capability(_CAP_SYS_ADMIN):
        return (
            "real pods need CAP_SYS_ADMIN (this looks like an unprivileged container): run it on a machine, or in a VM"
        )
    if not shutil.which("apt-get") and not all(map(shutil.which, ("dockerd", "runc", "iptables"))):
        return "real pods need docker, runc and iptables, and this is no Debian where they could be installed"
    return ""


def prepare() -> None:
    """Install missing packages, load modules and raise limits. Raises CannotRunError."""
    if obstacle := reason_against():
        raise CannotRunError(obstacle)
    install()
    limit = Path("/proc/sys/fs/inotify/max_user_instances")
    if int(limit.read_text()) < _INOTIFY:
        limit.write_text(str(_INOTIFY))
    for module in ("br_netfilter", "overlay", "nf_conntrack"):
        succeeds("modprobe", module)  # built in, loaded already, or missed later by what needs it


def install() -> None:
    """Install the missing ones of PACKAGES."""
    if not shutil.which("dpkg-query"):
        return
    absent_packages = [name for name in PACKAGES if not succeeds("dpkg", "-s", name)]
    if not absent_packages:
        return
    say(f"installing {' '.join(absent_packages)}")
    log = folders.LOGS / "apt.log"
    quiet = ("apt-get", "-q", "-o", "DPkg::Lock::Timeout=300")
    run(*quiet, "update", log=log, timeout=600)
    environment = ("env", "DEBIAN_FRONTEND=noninteractive")
    run(*environment, *quiet, "install", "-y", "--no-install-recommends", *absent_packages, log=log, timeout=1800)


def has_capability(number: int) -> bool:
    """Whether this process has it in effect."""
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = next(line.split()[1] for line in lines if line.startswith("CapEff"))
    return bool(int(effective, 16) >> number & 1)


def may_lower_oom_scores() -> bool:
    """Whether containers can get the OOM scores that they are meant to have."""
    return has_capability(_CAP_SYS_RESOURCE)


def cgroup_v2() -> bool:
    """Whether there is one unified hierarchy."""
    return Path("/sys/fs/cgroup/cgroup.controllers").exists()
