"""No command and no message of an error shows a secret, not even one that a server sends back.

What processes log, send, store and serve is searched by the last test of `test_fleet.py`.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dsf.redisacl.rules import hub_user
from dsf.settings import ENV_PREFIX
from dsf.text import WITHHELD
from tests.integration.security.fleet import CANARIES, CLOUDS, OTHER, SCORER, Fleet
from tests.integration.security.traces import contents, files, pages
from tests.support.httpserver import Exchange, answer
from tests.support.wait import wait_for

# One worker for all of them: they share servers and follow each other.
pytestmark = pytest.mark.xdist_group("security-canary")

#: Every command that looks or changes something, each form of output.
COMMANDS = (
    ("status",),
    ("status", SCORER),
    ("scores", "--cluster", "c1"),
    ("rescore", SCORER, "--cluster", "c1", "--wait"),
    ("schedule", "list"),
    ("schedule", "set", SCORER, "--interval", "1"),
    ("schedule", "reset", SCORER),
    ("history", SCORER, "--cluster", "c1"),
    ("explain", SCORER, "--cluster", "c1"),
    ("explain", OTHER, "--cluster", "c1"),
    ("explain", CLOUDS, "--cluster", "c1"),
    ("credentials", "list"),
)


def found(text: str, secrets: Mapping[str, str]) -> list[str]:
    """Names of the secrets that are in a text, as they are or in base64."""
    return [
        name
        for name, secret in secrets.items()
        if secret in text or base64.b64encode(secret.encode()).decode().rstrip("=")[:-1] in text
    ]


def run(*arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """`dsf` with these settings and no others, as talkative as it can be."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    values = {"log_level": "DEBUG", **settings}
    environment |= {ENV_PREFIX + name.upper(): str(value) for name, value in values.items()}
    return subprocess.run(
        [sys.executable, "-m", "dsf.cli", *arguments],
        env=environment, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip


def as_operator(fleet: Fleet) -> dict[str, object]:
    """Settings of a person at the hub."""
    folder = fleet.out / "clusters" / "c1"
    return {
        "role": "cli",
        "redis_url": fleet.redis.url(),
        "redis_ca_file": fleet.redis.ca.cert,
        "redis_username": hub_user("operator"),
        "redis_password": CANARIES["password of operator"],
        "agent_config": folder / "dynamic-scoring-config.yaml",
        "agent_secrets_dir": folder / "secrets",
    }


def answered(fleet: Fleet, *arguments: str) -> list[subprocess.CompletedProcess[str]]:
    """A command, run again while it meets a cycle of the schedule, which is no failure of either; all of its runs."""
    done: list[subprocess.CompletedProcess[str]] = []

    def is_over() -> bool:
        done.append(run(*arguments, **as_operator(fleet)))
        return done[-1].returncode == 0 or "overlap" not in done[-1].stdout

    wait_for(is_over, 20, f"an end of {arguments} that is no overlap")
    return done


def echo(exchange: Exchange) -> None:
    """A server that refuses a token and says which."""
    token = exchange.request.headers.get("Authorization", "")
    exchange.send(json.dumps({"status": "error", "error": f"not a good token: {token}"}).encode(), 401)


def escaped(exchange: Exchange) -> None:
    """The same as Prometheus' own words about a query, each character of the token escaped."""
    token = "".join(f"\\u{ord(char):04x}" for char in exchange.request.headers.get("Authorization", ""))
    exchange.send(b'{"status": "error", "error": "not a good token: %s"}' % token.encode(), 400)


def quoted(exchange: Exchange) -> None:
    """The same as a URL, on a page."""
    token = exchange.request.headers.get("Authorization", "")
    exchange.send(f"<p>not a good token: {quote(token, safe='').replace('-', '%2D')}</p>".encode(), 500)


def in_an_error(exchange: Exchange) -> None:
    """An answer with status 200 that is an error, with the token in it."""
    token = exchange.request.headers.get("Authorization", "")
    exchange.send(json.dumps({"status": "error", "error": f"not a good token: {token}"}).encode(), 200)


@pytest.fixture(params=[echo, escaped, quoted, in_an_error])
def echoing(fleet: Fleet, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """The fleet with a source that sends back what it is asked with."""
    fleet.source.script(request.param)
    before = fleet.state("c1").count("error")
    fleet.until(lambda: fleet.state("c1").count("error") > before, "a failed cycle")
    yield fleet
    fleet.source.script(answer({"status": "error"}, 503))


def test_no_command_shows_a_secret(fleet: Fleet) -> None:
    for arguments in COMMANDS:
        for form in ("table", "json"):
            done = answered(fleet, *arguments, "-o", form)
            assert done[-1].returncode == 0, f"{arguments}: {done[-1].stdout}{done[-1].stderr}"
            assert [found(one.stdout + one.stderr, CANARIES) for one in done] == [[]] * len(done), arguments


def test_a_token_that_a_source_sends_back_is_not_shown(echoing: Fleet) -> None:
    places: dict[str, str] = {}
    for arguments in (("status",), ("history", SCORER, "--cluster", "c1"), ("explain", SCORER, "--cluster", "c1")):
        for form in ("table", "json"):
            done = run(*arguments, "-o", form, **as_operator(echoing))
            places[f"dsf {' '.join(arguments)} -o {form}"] = done.stdout + done.stderr
    places |= dict(contents(echoing)) | dict(files(echoing)) | dict(pages(echoing))
    assert [(place, name) for place, text in places.items() for name in found(text, CANARIES)] == []
    # It is told that the token was refused, or that what was said cannot be shown.
    told = places[f"dsf history {SCORER} --cluster c1 -o json"]
    assert "not a good token" in told or WITHHELD in told


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        (("status",), {"redis_url": "redis://someone:{canary}@127.0.0.1:1/0"}),
        (("status",), {"redis_url": "redis://someone:{canary}@[half/0"}),
        (("status",), {"redis_url": "{canary}"}),
        (("status",), {"redis_url": "sentinel://someone:{canary}@127.0.0.1:1/0"}),
        (("beat",), {"redis_url": "nothing://someone:{canary}@127.0.0.1:1/0"}),
        (("results",), {"role": "results", "signing_secret": "{canary}", "backend": "dir", "manifests": "/tmp"}),
        (("results",), {"role": "results", "signing_secret_file": "{file}", "backend": "dir", "manifests": "/tmp"}),
        (("agent", "--cluster", "c1"), {"role": "agent", "signing_key": "{canary}", "agent_config": "{file}"}),
        (("hub",), {"role": "hub", "redis_password": "{canary}", "health_interval": "{canary}-is-no-number"}),
    ],
)
def test_what_is_wrong_is_said_without_it(tmp_path: Path, arguments: tuple[str, ...], settings: dict[str, str]) -> None:
    canary = "canary-5e11ed0e"
    file = tmp_path / "secret"
    file.write_text(canary)
    values: dict[str, Any] = {name: text.format(canary=canary, file=file) for name, text in settings.items()}
    done = run(*arguments, **{"redis_url": "redis://127.0.0.1:1/0", "redis_connect_timeout": 1, **values})
    assert done.returncode != 0
    assert done.stderr.strip() or done.stdout.strip()
    assert canary not in done.stdout + done.stderr, done.stderr
