"""Everything that a running fleet writes, sends and shows: (place, text) for each place."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.integration.security.fleet import SCORER, Fleet


def traffic(fleet: Fleet, of: str, *stages: str) -> Iterator[tuple[str, str]]:
    """Record everything that passes through Redis until each kind occurred: ticks, results, events and others.

    `of` names the moment, `stages` are those that cycles reach then.
    """
    unseen_parts = {*stages, "dsf.ingest", "/0.celeryev/task"}
    with fleet.admin.monitor() as monitor:
        connection = monitor.connection
        lines: list[str] = []
        begin = time.monotonic()
        while time.monotonic() < begin + 4.5 or (unseen_parts and time.monotonic() < begin + 60):
            if connection.can_read(timeout=0.2):
                lines.append(str(connection.read_response()))
                unseen_parts -= {part for part in unseen_parts if part in lines[-1]}
    assert not unseen_parts, f"not seen: {unseen_parts}"
    yield f"redis traffic of {of}", "\n".join(lines)


def contents(fleet: Fleet) -> Iterator[tuple[str, str]]:
    """Return every key of Redis, and its data about users and clients."""
    readers: dict[str, Any] = {
        "string": fleet.admin.get,
        "hash": fleet.admin.hgetall,
        "list": lambda key: fleet.admin.lrange(key, 0, -1),
        "set": fleet.admin.smembers,
        "zset": lambda key: fleet.admin.zrange(key, 0, -1, withscores=True),
        "stream": fleet.admin.xrange,
        # Taken or expired since it was listed.
        "none": lambda key: "",
    }
    for key in fleet.admin.scan_iter("*"):
        yield f"redis {key}", f"{key} {readers[fleet.admin.type(key)](key)}"
    yield "redis clients", str(fleet.admin.client_list())
    yield "redis acl", str(fleet.admin.acl_list())
    yield "redis acl log", str(fleet.admin.execute_command("ACL LOG", 500))
    yield "redis slow log", str(fleet.admin.slowlog_get(100))


def files(fleet: Fleet) -> Iterator[tuple[str, str]]:
    """Logs, status and score objects, the spool; not the Secrets themselves."""
    private = ("agent-credentials", "secrets", ".hub")
    for folder in (fleet.logs, fleet.out, fleet.folder / "spool", fleet.manifests):
        for path in folder.rglob("*"):
            # Files that are being written are renamed, and sent ones are removed.
            with contextlib.suppress(FileNotFoundError):
                if path.is_file() and not set(private) & set(path.parts):
                    yield f"file {path.relative_to(fleet.folder)}", path.read_text(errors="replace")
    for name in ("dump.rdb", "log"):
        path = Path(fleet.redis.dir) / name
        if path.exists():
            yield f"redis file {name}", path.read_text(errors="replace")


def served(fleet: Fleet) -> Iterator[tuple[str, str]]:
    """Yield the responses of the HTTP services that describe cycles: Flower's pages are built from its list of
    tasks.
    """
    yield "flower /api/tasks", fleet.get(fleet.flower_port, "/api/tasks")
    history = [f"/api/v1/history/{cluster}/{SCORER}" for cluster in fleet.clusters]
    for path in ("/metrics", "/api/v1/scores", "/api/v1/scorers", "/api/v1/schedule", "/openapi.json", *history):
        yield f"exporter {path}", fleet.get(fleet.web_port, path)
    for cluster in fleet.clusters:
        line = next(row for row in fleet.log(f"agent-{cluster}").splitlines() if "metrics served" in row)
        yield f"agent {cluster} /metrics", fleet.get(int(line.split("port=")[1].split()[0]), "/metrics")


def pages(fleet: Fleet) -> Iterator[tuple[str, str]]:
    """Flower's pages."""
    tasks = json.loads(fleet.get(fleet.flower_port, "/api/tasks"))
    workers = {task["worker"] for task in tasks.values() if task["worker"]}
    paths = ["/", "/workers", "/tasks", "/broker", "/metrics", "/api/workers", "/api/task/types"]
    paths += [f"/worker/{name}" for name in workers]
    paths += [page for uid in list(tasks)[:20] for page in (f"/task/{uid}", f"/api/task/info/{uid}")]
    for path in paths:
        yield f"flower {path}", fleet.get(fleet.flower_port, path)
    assert "dsf.fetch" in fleet.get(fleet.flower_port, "/api/tasks")
    assert "spoke.c1" in fleet.get(fleet.flower_port, "/broker")


def secrets_in(text: str, secrets: Mapping[str, str]) -> list[str]:
    """Return the names of the secrets that are in a text, as they are or in base64."""
    return [
        name
        for name, secret in secrets.items()
        if secret in text or base64.b64encode(secret.encode()).decode().rstrip("=")[:-1] in text
    ]
