"""The framework's processes on a Redis of the test's choice, each with its own user."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dsf.messages import derive_key
from dsf.redisacl.clusterusers import derive_password
from dsf.redisacl.rules import cluster_user, hub_user
from dsf.settings import ENV_PREFIX, TARGETS
from dsf.worker.commands import make_flower_command
from tests.integration.security.fleet import MASTER
from tests.support import forked
from tests.support.child import Child
from tests.support.redisserver import free_port

#: The agent is that of this cluster.
CLUSTER = "c1"


@contextlib.contextmanager
def processes(
    folder: Path,
    roles: Sequence[str],
    passwords: Mapping[str, str],
    summaries: Sequence[Mapping[str, Any]] = (),
    **settings: object,
) -> Iterator[dict[str, Child]]:
    """Run a process for each of these roles; output goes to `<folder>/<role>.log`."""
    (folder / "manifests").mkdir()
    (folder / "key").write_text(derive_key(MASTER, CLUSTER, 1).dump())
    (folder / "config.json").write_text(json.dumps(list(summaries)))
    commands = {
        **dict.fromkeys(TARGETS, (sys.executable, "-m", "dsf.hub")),
        "flower": tuple(make_flower_command("127.0.0.1", free_port())),
        "agent": (sys.executable, "-m", "dsf.agent"),
    }
    common = {"backend": "dir", "manifests": folder / "manifests", "listen_host": "127.0.0.1", "listen_port": 0}
    settings_by_role: dict[str, dict[str, object]] = {
        role: {"redis_username": hub_user(role), "redis_password_file": _file(folder / f"{role}-password", password)}
        for role, password in passwords.items()
    }
    settings_by_role["agent"] = {
        "redis_username": cluster_user(CLUSTER),
        "redis_password_file": _file(folder / "agent-password", derive_password(MASTER, CLUSTER, 1)),
        "cluster": CLUSTER,
        "agent_config": folder / "config.json",
        "signing_key_file": folder / "key",
        "agent_spool_dir": folder / "spool",
        "probe_dir": folder,
    }
    for role in ("controller", "results"):
        settings_by_role[role]["signing_secret"] = MASTER.hex()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    environment["PYTHONUNBUFFERED"] = "1"
    with contextlib.ExitStack() as stack:
        started = {}
        for role in roles:
            values = {**common, **settings, "role": role, **settings_by_role[role]}
            if role in TARGETS:
                values |= {"role": "hub", "target": role, "probe_port": 0}
            variables = {ENV_PREFIX + name.upper(): str(value) for name, value in values.items()}
            started[role] = forked.child(commands[role], folder / f"{role}.log", environment | variables)
            stack.callback(started[role].kill)
        yield started


def _file(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
