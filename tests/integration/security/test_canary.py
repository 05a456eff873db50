"""No command and no message of an error shows a secret, not even one that a server sends back.

Logs, messages, stored data and served pages are searched by `running/test_traces.py`.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dsf.reasons import FailureReason
from dsf.settings import ENV_PREFIX
from dsf.store.pairs import Pairs
from dsf.text import WITHHELD
from tests.integration.security.fleet import CANARIES, CLOUDS, OTHER, SCORER, Fleet, gives
from tests.integration.security.traces import contents, files, pages, secrets_in, served
from tests.support import forked
from tests.support.httpserver import Exchange, answer, with_clock_offset
from tests.support.wait import wait_for


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The whole fleet with every method of authentication, whose secrets are searched for here."""
    with Fleet(tmp_path_factory.mktemp("fleet"), ("c1",), every_method=True) as running:
        yield running


#: Every command that reads or changes something, with each form of output.
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


#: Output about a cycle that coincided with another one, or had no time; not about zero such cycles.
_LATE = re.compile(r'\b(overlap|deadline|timeout|expired|no complete response)\b(?!": (0|false)\b)')


class WrongAnswerError(Exception):
    """A command found something wrong that time does not mend."""


def answered(fleet: Fleet, *arguments: str) -> list[str]:
    """Run a command until it finds nothing wrong; returns the outputs of all runs.

    A run may coincide with a scheduled cycle, or hit a deadline: neither matters here. Raises WrongAnswerError when it
    finds anything else.
    """
    outputs: list[str] = []

    def is_well() -> bool:
        result = fleet.run_command(*arguments)
        outputs.append(result.stdout + result.stderr)
        if result.exit_code != 0 and not _LATE.search(outputs[-1]):
            raise WrongAnswerError(f"{arguments} ended with {result.exit_code}: {outputs[-1]}")
        assert result.exit_code == 0, outputs[-1]
        return True

    wait_for(is_well, 20, f"{arguments} to find nothing wrong")
    return outputs


def echo(exchange: Exchange) -> None:
    """A server that refuses a token and quotes it; its clock is off."""
    token = exchange.request.headers.get("Authorization", "")
    unauthorized = answer({"status": "error", "error": f"not a good token: {token}"}, 401)
    with_clock_offset(7200, unauthorized)(exchange)


def escaped(exchange: Exchange) -> None:
    """The same as Prometheus' own words about a query, each character of the token escaped."""
    token = "".join(f"\\u{ord(char):04x}" for char in exchange.request.headers.get("Authorization", ""))
    exchange.send(b'{"status": "error", "error": "not a good token: %s"}' % token.encode(), 400)


def quoted(exchange: Exchange) -> None:
    """The same as a URL, on a page."""
    token = exchange.request.headers.get("Authorization", "")
    exchange.send(f"<p>not a good token: {quote(token, safe='').replace('-', '%2D')}</p>".encode(), 500)


def in_an_error(exchange: Exchange) -> None:
    """A response with status 200 that is an error, with the token in it."""
    token = exchange.request.headers.get("Authorization", "")
    exchange.send(json.dumps({"status": "error", "error": f"not a good token: {token}"}).encode(), 200)


@pytest.fixture(params=[echo, escaped, quoted, in_an_error])
def echoing(fleet: Fleet, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """The fleet with a source that sends back received headers."""
    fleet.source.script(request.param)
    before = fleet.state("c1").count("error")

    def shows_error() -> bool:
        """Return a failure by deadline or timeout would not contain the echoed secret."""
        failure = fleet.state("c1").failure
        assert fleet.state("c1").count("error") > before
        assert failure is not None
        assert failure.reason not in (FailureReason.DEADLINE, FailureReason.TIMEOUT)
        return failure.reason in (fleet.out / "dynamicscorers" / f"{SCORER}.yaml").read_text()

    fleet.until(shows_error, "a failed cycle, of which the status tells")
    yield fleet
    fleet.give_series()


def test_commands_show_no_secret(fleet: Fleet) -> None:
    for arguments in COMMANDS:
        for form in ("table", "json"):
            outputs = answered(fleet, *arguments, "-o", form)
            assert [secrets_in(output, CANARIES) for output in outputs] == [[]] * len(outputs), arguments
    # Run one in a process, as users do.
    process = forked.dsf(("explain", SCORER, "--cluster", "c1"), fleet.operator_environment())
    assert secrets_in(process.stdout + process.stderr, CANARIES) == []
    assert process.stdout


def test_token_echoed_by_a_source_is_not_shown(echoing: Fleet) -> None:
    text_by_surface: dict[str, str] = {}
    for arguments in (("status",), ("history", SCORER, "--cluster", "c1"), ("explain", SCORER, "--cluster", "c1")):
        for form in ("table", "json"):
            result = echoing.run_command(*arguments, "-o", form)
            text_by_surface[f"dsf {' '.join(arguments)} -o {form}"] = result.stdout + result.stderr
    text_by_surface |= dict(contents(echoing)) | dict(files(echoing)) | dict(served(echoing))
    assert [(surface, name) for surface, text in text_by_surface.items() for name in secrets_in(text, CANARIES)] == []
    # The history shows the refusal of the token, or that the message is withheld.
    history_output = text_by_surface[f"dsf history {SCORER} --cluster c1 -o json"]
    assert "not a good token" in history_output or WITHHELD in history_output
    if "HTTP 401" in text_by_surface[f"dsf explain {SCORER} --cluster c1 -o json"]:
        # Every view reports a clock difference.
        skewed = "s ahead of that of who asks"
        assert skewed in text_by_surface[f"dsf explain {SCORER} --cluster c1 -o json"]
        # The newest cycle may have had no time.
        file = echoing.out / "dynamicscorers" / f"{SCORER}.yaml"
        echoing.until(lambda: skewed in file.read_text(), "the status to tell of the clock")
        status = ("status", "-o", "json")
        echoing.until(lambda: skewed in echoing.run_command(*status).stdout, "dsf status to tell of it")


def test_secrets_echoed_by_a_token_server_are_not_shown(fleet: Fleet) -> None:
    """New tokens in bad responses, the client's secret as sent, and a token that was renewed after a 401."""
    form = f"access_token={CANARIES['lost token']}&token_type=bearer"
    newer = f"Bearer {CANARIES['newer token']}"
    turns = itertools.cycle(("access token", "newer token"))
    repeated: list[str] = []

    def in_turn(exchange: Exchange) -> None:
        gives(next(turns))(exchange)

    def repeat(exchange: Exchange) -> None:
        if exchange.request.headers.get("Authorization") == newer:
            repeated.append(newer)
            in_an_error(exchange)
        else:
            exchange.send(b"", 401)

    def errors() -> int:
        return Pairs(fleet.admin).read_state("c1", OTHER).count("error")

    text_by_surface: dict[str, str] = {}
    try:
        for response_kind, invalid_response in {
            "a form": answer(form, Content_Type="application/x-www-form-urlencoded"),
            "another status": gives("lost token", 201),
            "an echo": echo,
            "a renewal": in_turn,
        }.items():
            if invalid_response is in_turn:
                fleet.scorer.script(repeat, path="/other")
            fleet.oauth.script(invalid_response)
            before, repeated_before = errors(), len(repeated)

            def has_failed(
                before: int = before, expected_repeats: int = repeated_before + (invalid_response is in_turn)
            ) -> bool:
                return errors() >= before + 3 and len(repeated) >= expected_repeats

            fleet.until(has_failed, f"failed cycles by {response_kind}", 30)
            result = fleet.run_command("explain", OTHER, "--cluster", "c1", "-o", "json")
            text_by_surface[f"dsf explain by {response_kind}"] = result.stdout + result.stderr
            assert (len(repeated) > repeated_before) == (invalid_response is in_turn)
        text_by_surface |= dict(contents(fleet)) | dict(files(fleet)) | dict(pages(fleet))
    finally:
        fleet.give_tokens()
    assert [(surface, name) for surface, text in text_by_surface.items() for name in secrets_in(text, CANARIES)] == []
    assert "HTTP 200, not JSON" in text_by_surface["dsf explain by a form"]
    good_cycles = Pairs(fleet.admin).read_state("c1", OTHER).count("ok")
    fleet.until(lambda: Pairs(fleet.admin).read_state("c1", OTHER).count("ok") > good_cycles, "a good cycle")


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        (("dsf.cli", "status"), {"redis_url": "redis://someone:{canary}@127.0.0.1:1/0"}),
        (("dsf.cli", "status"), {"redis_url": "redis://someone:{canary}@[half/0"}),
        (("dsf.cli", "status"), {"redis_url": "{canary}"}),
        (("dsf.cli", "status"), {"redis_url": "sentinel://someone:{canary}@127.0.0.1:1/0"}),
        (("dsf.hub",), {"target": "beat", "redis_url": "nothing://someone:{canary}@127.0.0.1:1/0"}),
        (("dsf.hub",), {"target": "results", "signing_secret": "{canary}", "backend": "dir", "manifests": "/tmp"}),
        (("dsf.hub",), {"target": "results", "signing_secret_file": "{file}", "backend": "dir", "manifests": "/tmp"}),
        (("dsf.agent",), {"role": "agent", "cluster": "c1", "signing_key_file": "{file}", "agent_config": "{file}"}),
        (
            ("dsf.cli", "hub"),
            {"role": "hub", "redis_password_file": "{file}", "health_interval": "{canary}-is-no-number"},
        ),
    ],
)
def test_settings_errors_do_not_contain_the_secret(
    tmp_path: Path, command: tuple[str, ...], settings: dict[str, str]
) -> None:
    canary = "canary-5e11ed0e"
    file = tmp_path / "secret"
    file.write_text(canary)
    values: dict[str, Any] = {name: text.format(canary=canary, file=file) for name, text in settings.items()}
    settings_under_test = {"redis_url": "redis://127.0.0.1:1/0", **values}
    variables = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    setting_variables = {
        ENV_PREFIX + name.upper(): str(value) for name, value in {"log_level": "DEBUG", **settings_under_test}.items()
    }
    process = forked.run(command[0], command[1:], variables | setting_variables)
    assert process.returncode != 0
    assert process.stderr.strip() or process.stdout.strip()
    assert canary not in process.stdout + process.stderr, process.stderr
