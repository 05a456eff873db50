"""Celery's own commands behave like their `dsf` equivalents."""

from __future__ import annotations

import pytest

from dsf.worker.commands import make_flower_command, prepare

CELERY = ("celery", "-A", "dsf.celery")


@pytest.mark.parametrize(
    ("words", "initial_environment", "role"),
    [
        ((*CELERY, "beat"), {}, "beat"),
        (("/site-packages/celery/__main__.py", "-A", "dsf.celery", "flower", "--port=1"), {}, "flower"),
        ((*CELERY, "inspect", "active"), {}, "cli"),
        ((*CELERY, "call", "dsf.cycle", "--queue", "spoke.c1"), {}, "cli"),
        ((*CELERY, "result", "an-id"), {}, "cli"),
        # The default is the results worker; a configured role is kept, except that of the container's own process.
        ((*CELERY, "worker", "-Q", "hub.results"), {}, None),
        ((*CELERY, "beat"), {"DSF_ROLE": "hub"}, "beat"),
        ((*CELERY, "beat"), {"DSF_ROLE": "results"}, "results"),
        (("dsf", "flower"), {}, None),
        # Another project's worker may import our application.
        (("celery", "-A", "theirs", "call"), {}, None),
        (("celery", "call"), {}, None),
        (("celery", "--app=dsf", "call"), {}, "cli"),
        (("celery", "-Adsf.celery:app", "call"), {}, "cli"),
        (("pytest",), {}, None),
    ],
)
def test_celery_command_sets_the_role(
    words: tuple[str, ...], initial_environment: dict[str, str], role: str | None
) -> None:
    environment = dict(initial_environment)
    prepare(words, environment)
    assert environment.get("DSF_ROLE") == role


def test_celerys_flower_has_the_options_of_ours() -> None:
    environment = {"FLOWER_MAX_TASKS": "5"}
    prepare((*CELERY, "flower"), environment)
    our_options = dict(
        word.removeprefix("--").split("=", 1)
        for word in make_flower_command("127.0.0.1", 5555)
        if word.startswith("--")
    )
    assert our_options.pop("port") == "5555"
    assert {f"FLOWER_{name.upper()}": value for name, value in our_options.items()} == {
        name: value for name, value in environment.items() if name != "DSF_ROLE"
    } | {"FLOWER_MAX_TASKS": "10000"}
    assert environment["FLOWER_READ_ONLY"] == "True"
    assert environment["FLOWER_MAX_TASKS"] == "5"


def test_celerys_worker_is_the_results_worker_unless_it_has_a_role() -> None:
    environment = {"CELERY_WORKER_HEARTBEAT_INTERVAL": "5"}
    prepare((*CELERY, "worker", "-Q", "hub.results"), environment)
    assert environment["CELERY_WORKER_HOSTNAME"] == "results@%h"
    assert environment["CELERY_WORKER_HEARTBEAT_INTERVAL"] == "5"
    assert "DSF_ROLE" not in environment


def test_variables_of_flower_replace_options_but_not_those_of_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MAX_TASKS": "500", "READ_ONLY": "False", "ADDRESS": "0.0.0.0", "PORT": "1"}.items():
        monkeypatch.setenv(f"FLOWER_{name}", value)
    command = make_flower_command("127.0.0.1", 5555)
    assert not any(word.startswith("--max_tasks") for word in command)
    assert {"--read_only=True", "--address=127.0.0.1", "--port=5555", "--purge_offline_workers=600"} <= set(command)
