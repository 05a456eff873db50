"""A scorer or cluster causes an error at each step of the hub's work; all others go on."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import structlog

from tests.integration.hub.world import HubHarness, remote_config, scoring_api
from tests.support.httpserver import ScriptedServer, answer

CANARY = "injected by the test"
Wrong = Callable[..., bool]


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[str]]:
    """Return the logged lines, formatted as in production; the default shows all local variables, half a second each.

    capfd is not used: reading its file while threads write to it can end the interpreter (CPython's gh-119506).
    """
    lines: list[str] = []

    def keep(_: Any, __: str, line: Any) -> Any:
        lines.append(line)
        return line

    before = structlog.get_config()["processors"]
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*before[:-1], plain, keep])
    yield lines
    structlog.configure(processors=before)


def _is_scorer(name: str, *arguments: Any) -> bool:
    """Whether a call is about this scorer."""
    return any(name in str(getattr(argument, "name", argument))[:2000] for argument in arguments)


def _is_cluster(name: str, *arguments: Any) -> bool:
    is_named = any(getattr(argument, "name", argument) == name for argument in arguments)
    return is_named or f"'name': '{name}'" in str(arguments[0])[:2000]


def _break(monkeypatch: pytest.MonkeyPatch, target: str, is_wrong: Wrong) -> list[str]:
    """Let a function or method raise an unexpected error for the bad object only; each call is recorded."""
    module, _, path = target.partition(":")
    owner: Any = importlib.import_module(module)
    *classes, name = path.split(".")
    for part in classes:
        owner = getattr(owner, part)
    true = getattr(owner, name)
    times: list[str] = []

    def broken(*arguments: Any, **keywords: Any) -> Any:
        if is_wrong(*arguments, *keywords.values()):
            times.append(target)
            raise KeyError(CANARY)
        return true(*arguments, **keywords)

    monkeypatch.setattr(owner, name, broken)
    return times


#: Step -> location in the scorer's status; empty without one, because the status cannot be read or written.
SCORER_STEPS = {
    "dsf.hub.desiredstate:read_object": "",
    "dsf.hub.plan:resolve_for_clusters": "ConfigSynced",
    "dsf.hub.plan:_make_resolved_plan": "ConfigSynced",
    "dsf.hub.scorerplan:ScorerRecord": "ConfigSynced",
    "dsf.hub.scorerplan:Entry": "ConfigSynced",
    "dsf.hub.manifestwork:dump_summaries": "ConfigSynced",
    "dsf.hub.health:HealthMonitor.track": "Scoring",
    "dsf.hub.statusreconcilers:make_scorer_status": "Scoring",
    "dsf.hub.statusreconcilers:ScorerReconciler._count_deliveries": "Scoring",
    "dsf.hub.registrar:Registrar._sync_scorer": "Scoring",
    "dsf.hub.registrar:Registrar.read_outcomes": "Scoring",
    "dsf.hub.statusreconcilers:write_status": "",
}


CLUSTER_STEPS = (
    "dsf.hub.desiredstate:read_object",
    "dsf.hub.credentials:AgentCredentials.ensure",
    "dsf.hub.clusters:make_manifest_work",
    "dsf.hub.clusters:ClusterReconciler._delay_undelivered",
    "dsf.hub.registrar:Registrar.put_entries",
    "dsf.hub.registrar:Registrar.get_entries",
)


def test_errors_of_some_scorers_do_not_affect_others(
    running: HubHarness, monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    """Each step of the hub's work raises an error for some scorers."""
    step_by_scorer = {f"bad-{number:02}": step for number, step in enumerate(SCORER_STEPS)}
    times = {name: _break(monkeypatch, step, partial(_is_scorer, name)) for name, step in step_by_scorer.items()}
    with contextlib.ExitStack() as stack:
        apis = {name: stack.enter_context(scoring_api(name)) for name in (*step_by_scorer, "mem")}
        for name in step_by_scorer:
            running.scorer(name, apis[name])
        for name, step in step_by_scorer.items():
            if condition := SCORER_STEPS[step]:
                running.until(
                    partial(
                        lambda *scorer_and_condition: running.condition(*scorer_and_condition)[1] == "InternalError",
                        name,
                        condition,
                    )
                )
                assert "KeyError" in running.condition(name, condition)[2]
        running.until(lambda: all(times.values()), "an error at each step")
        assert any(CANARY in line for line in logged)
        # New scorers and clusters are still planned, delivered, scheduled and reported, and removed ones disappear.
        running.scorer("mem-scorer", apis["mem"])
        running.cluster("c")
        expected_pairs = {f"{cluster}/{name}" for cluster in "abc" for name in ("cpu-scorer", "mem-scorer")}
        running.until(lambda: expected_pairs <= set(running.pairs()))
        running.until(lambda: running.condition("mem-scorer", "Distributed")[0] == "True")
        running.remove("scorers/cpu-scorer.yaml")
        running.cluster("b", accepted=False)
        running.until(
            lambda: {pair for pair in running.pairs() if "bad" not in pair} == {"a/mem-scorer", "c/mem-scorer"}
        )
        running.until(lambda: running.record("cpu-scorer") is None)
        # The scorers themselves recover as soon as nothing fails any more.
        monkeypatch.undo()
        for name in step_by_scorer:
            running.scorer(name, apis[name], metadata={"annotations": {"changed": "1"}})
        running.until(
            lambda: {f"{cluster}/{name}" for cluster in "ac" for name in step_by_scorer} <= set(running.pairs())
        )
        running.until(lambda: all(running.condition(name, "Scoring")[1] == "NoCyclesYet" for name in step_by_scorer))


def test_errors_of_some_clusters_do_not_affect_others(
    running: HubHarness, monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    """Each step of the hub's work raises an error for some clusters."""
    step_by_cluster = {f"bad-{number}": step for number, step in enumerate(CLUSTER_STEPS)}
    times = {name: _break(monkeypatch, step, partial(_is_cluster, name)) for name, step in step_by_cluster.items()}
    for name in step_by_cluster:
        running.cluster(name)
    running.until(lambda: all(times.values()), "an error at each step")
    assert any(CANARY in line for line in logged)
    with scoring_api("mem") as other:
        running.scorer("mem-scorer", other)
        running.cluster("c")
        expected_pairs = {f"{cluster}/{name}" for cluster in "abc" for name in ("cpu-scorer", "mem-scorer")}
        running.until(lambda: expected_pairs <= set(running.pairs()))
        running.remove("scorers/cpu-scorer.yaml")
        running.until(
            lambda: {pair for pair in running.pairs() if "bad" not in pair} == {f"{c}/mem-scorer" for c in "abc"}
        )
        monkeypatch.undo()
        for name in step_by_cluster:
            running.remove(f"clusters/{name}.yaml")
        running.until(
            lambda: not any(running.cluster_record(name) or running.delivered_scorers(name) for name in step_by_cluster)
        )
        for name in step_by_cluster:
            running.cluster(name)
        running.until(lambda: {f"{name}/mem-scorer" for name in step_by_cluster} <= set(running.pairs()))


def test_failing_notification_does_not_stop_later_notifications(
    running: HubHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    _break(monkeypatch, "dsf.hub.hub:Hub._refresh_statuses", lambda *hub_and_scorers: hub_and_scorers[1] == {"broken"})
    running.tell("broken")
    running.until(lambda: not running.client.exists("dsf:hub:changed"))
    running.fail("a", "cpu-scorer", "connection_failed", "no route", 1_700_000_000)
    running.until(lambda: running.status("cpu-scorer")["clusters"]["failing"] == 1)


def test_malformed_address_is_refused_and_blocks_nothing(running: HubHarness) -> None:
    config = remote_config("bad")
    config["scoring"]["host"] = "http\u017f://x"
    with scoring_api() as hostile_api, scoring_api("mem") as other:
        hostile_api.script(answer(config), path="/config")
        auth = {"auth": {"tokenSecretRef": {"name": "t", "key": "k"}}}
        running.scorer("with-auth", hostile_api, scoring=auth)
        running.until(lambda: running.condition("with-auth", "ConfigSynced")[1] == "InvalidURL")
        running.scorer("mem-scorer", other)
        running.until(lambda: "a/mem-scorer" in running.pairs())
        running.scorer("with-auth", hostile_api)
        running.until(lambda: running.status("with-auth").get("observedGeneration") == 2)
        assert running.condition("with-auth", "ConfigSynced")[1] == "InvalidURL"
        assert "with-auth" not in (running.delivered_scorers("a") or [])


def test_unexpected_exception_counts_as_failed_health_check(
    running: HubHarness, monkeypatch: pytest.MonkeyPatch, api: ScriptedServer
) -> None:
    monkeypatch.setattr("dsf.http.probe", lambda *_, **__: {}["surprise"])
    running.until(lambda: running.condition("cpu-scorer", "Healthy")[:2] == ("False", "CheckFailed"))
    assert "KeyError" in running.condition("cpu-scorer", "Healthy")[2]
    assert running.status("cpu-scorer")["healthStatus"] == "Inactive"
    running.until(lambda: not any(entry.runnable for entry in running.entries().values()))
    monkeypatch.undo()
    running.until(lambda: running.condition("cpu-scorer", "Healthy")[0] == "True")


def test_scorer_of_an_unlisted_namespace_is_ignored(running: HubHarness) -> None:
    with scoring_api("theirs") as foreign_api:
        running.scorer(
            "theirs", foreign_api, metadata={"namespace": "team", "creationTimestamp": "2020-01-01T00:00:00Z"}
        )
        running.until(lambda: running.condition("team_theirs", "Scoring")[:2] == ("False", "OtherNamespace"))
        assert "open-cluster-management" in running.condition("team_theirs", "Scoring")[2]
        # The ignored scorer is not queried, and claims no score name.
        assert foreign_api.requests == []
        assert running.pairs() == ["a/cpu-scorer", "b/cpu-scorer"]
        running.until(lambda: ("theirs", "OtherNamespace", "Warning") in running.events())
        running.remove("scorers/cpu-scorer.yaml")
        running.settings = running.settings.model_copy(update={"scorer_namespaces": ["team"]})
        running.restart()
        running.until(lambda: running.pairs() == ["a/theirs", "b/theirs"])
        running.until(lambda: running.condition("team_theirs", "Scoring")[1] == "NoCyclesYet")
        # It is removed from the agents when its namespace is no longer accepted.
        running.settings = running.settings.model_copy(update={"scorer_namespaces": []})
        running.restart()
        running.until(lambda: running.pairs() == [] and running.delivered_scorers("a") == [])
        running.until(lambda: running.condition("team_theirs", "Scoring")[1] == "OtherNamespace")
        running.until(lambda: running.record("theirs") is None)
