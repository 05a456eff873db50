"""Actions of users on the page: affected clusters, execution and outcome."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import redis
from fastapi import HTTPException

from dsf import keys
from dsf.api.meta import pause_end
from dsf.api.types import MAX_SECONDS
from dsf.errors import BacktestError, UnknownScorerError
from dsf.fleet.actions import Actions
from dsf.fleet.changes import MAX_NOTE, Actor
from dsf.fleet.rescore import RunView, answer
from dsf.process import hubclock
from dsf.store.entries import Effective
from dsf.store.history import HistoryEntry, read_row
from dsf.web.access import PageUser
from dsf.web.backtestrunner import BacktestRunner, RunRequest
from dsf.web.pages import Query, Sources

#: Most runs of one action that are tracked; more are only counted.
MAX_RUNS: Final = 200
#: Most ended cycles that are remembered.
_MOST_ENDED: Final = 20 * MAX_RUNS

#: Ended cycles of such runs, by run id: the history of a pair soon has others.
_remembered: dict[str, HistoryEntry] = {}


@dataclass(frozen=True)
class Act:
    """An action of a user."""

    name: str
    title: str
    button: str
    help: str


ACTS: Final[Mapping[str, Act]] = {
    act.name: act
    for act in (
        Act("rescore", "Score now", "Score now", "sends one tick now; the schedule does not change"),
        Act("pause", "Pause", "Pause", "sends no ticks until then; existing scores expire as usual"),
        Act(
            "resume", "Resume", "Resume", "ends a pause, including `suspend` in the DynamicScorer; it runs immediately"
        ),
        Act("interval", "Set the interval", "Set the interval", "stays until it is reset"),
        Act(
            "backtest",
            "Backtest",
            "Run a backtest",
            "asks source and scoring API as this page reaches them, for each moment of the past, and publishes nothing",
        ),
        Act(
            "compare",
            "Compare",
            "Run a comparison",
            "shows how another scorer differs, and which Placements would have other clusters, and publishes nothing",
        ),
        Act("reset", "Reset", "Reset", "removes overrides: intervals and pauses"),
    )
}


#: Actions whose outcome is on the tab of backtests.
TESTS: Final = ("backtest", "compare")


class FormError(Exception):
    """A field of a form is invalid; the message says which and why."""


@dataclass(frozen=True)
class ActionTarget:
    """Target of an action: a scorer on one cluster, or on all (None)."""

    scorer: str
    cluster: str | None


class Acting:
    """Performs actions. Methods raise redis.RedisError, and UnknownScorerError or UnknownClusterError."""

    def __init__(self, sources: Sources, backtests: BacktestRunner) -> None:
        self._reading = sources.reading
        self._redis = sources.reading.redis
        self._settings = sources.settings
        self._backtests = backtests

    def affected(self, act: str, target: ActionTarget) -> tuple[list[str], list[str]]:
        """The affected clusters, and those that keep an override of their own, which goes before that of all."""
        self._reading.registry.scorer(target.scorer)
        targets = self._reading.targets(target.scorer)
        if target.cluster is None:
            own = [name for name, runs in targets.items() if _source(act, runs) == keys.pair(name, target.scorer)]
            return [name for name in targets if name not in own], own
        if target.cluster not in targets:
            raise UnknownScorerError(f"scorer {target.scorer!r} does not run on cluster {target.cluster!r}")
        return [target.cluster], []

    def do(self, act: str, target: ActionTarget, form: Mapping[str, str], caller: PageUser) -> str:
        """Perform the action; returns the id of its outcome or backtest, empty without one.

        Raises FormError before any change.
        """
        note = form.get("note", "").strip()
        if len(note) > MAX_NOTE:
            raise FormError(f"Note: at most {MAX_NOTE} characters.")
        actions = Actions(self._redis, self._settings, Actor(name=caller.name, claimed=caller.claimed, way="page"))
        scorer, cluster = target.scorer, target.cluster
        if act == "rescore":
            runs = actions.rescore(scorer, [cluster] if cluster else None, note=note)
            return self._keep(scorer, runs)
        if act == "pause":
            until = form.get("until", "").strip()
            actions.pause(scorer, cluster, read_until(until) if until else None, note=note)
        elif act == "resume":
            actions.resume(scorer, cluster, note=note)
        elif act in TESTS:
            asked = self._test(act, target, form)
            try:
                return self._backtests.start(asked, caller.name, lambda: _note(actions, asked, note))
            except BacktestError as error:
                raise FormError(f"{error}.") from None
        elif act == "interval":
            actions.set_interval(
                scorer, cluster, _whole("Interval", "seconds", form.get("seconds", ""), MAX_SECONDS), note=note
            )
        else:
            actions.reset(scorer, cluster, note=note)
        return ""

    def others(self, scorer: str) -> list[str]:
        """The scorers that this one can be compared with, by name."""
        return sorted(self._reading.registry.scorers().keys() - {scorer})

    def _test(self, act: str, target: ActionTarget, form: Mapping[str, str]) -> RunRequest:
        """Return what a form asks for."""
        is_past = act == "backtest" or form.get("how") == "past"
        since = 3600 * _whole("How far back", "hours", form.get("hours", ""), 24 * 365) if is_past else 0
        every = _whole("Every", "seconds", form.get("every", ""), MAX_SECONDS) if is_past else 0
        if act == "backtest":
            if target.cluster is None:
                raise FormError("Cluster: choose one.")
            return RunRequest(target.scorer, [target.cluster], since, every)
        other = form.get("other", "")
        if other not in self.others(target.scorer):
            raise FormError("The other scorer: choose one.")
        both = sorted(self._reading.targets(target.scorer).keys() & self._reading.targets(other).keys())
        clusters = [name for name in both if target.cluster in (None, name)]
        if not clusters:
            where = target.cluster or "any cluster"
            raise FormError(f"The other scorer: {other} and {target.scorer} do not both run on {where}.")
        return RunRequest(target.scorer, clusters, since, every, other)

    def _keep(self, scorer: str, runs: list[RunView]) -> str:
        ident = secrets.token_urlsafe(12)
        shown = [{"cluster": run.cluster, "run": run.run_id, "message": run.message} for run in runs[:MAX_RUNS]]
        stored = {"v": keys.SCHEMA_VERSION, "scorer": scorer, "runs": shown, "more": max(0, len(runs) - MAX_RUNS)}
        self._redis.set(keys.web_outcome(ident), json.dumps({**stored, "at": hubclock.now()}), ex=3600)
        return ident


def outcome(sources: Sources, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    """Data of the page that shows what came of an action's runs. Raises HTTPException (404) if that has expired."""
    text = sources.reading.redis.get(keys.web_outcome(names["ident"]))
    if text is None:
        raise HTTPException(404)
    stored = json.loads(str(text))
    ended = _ended(sources.reading.redis, stored["scorer"], stored["runs"])
    runs = [{**run, "cycle": ended.get(run["run"])} for run in stored["runs"]]
    open_runs = sum(run["run"] != "" and run["cycle"] is None for run in runs)
    title = f"Scored now: {stored['scorer']}"
    return {"title": title, "every": 1 if open_runs else 0, "outcome": {**stored, "runs": runs, "open": open_runs}}


def _ended(client: redis.Redis, scorer: str, runs: Sequence[Mapping[str, str]]) -> dict[str, HistoryEntry]:
    """Ended cycles of the runs by run id: one round trip, usually without parsing older cycles."""
    by_run = {run["run"]: cycle for run in runs if (cycle := _remembered.get(run["run"])) is not None}
    sent = [run for run in runs if run["run"] and run["run"] not in by_run]
    with client.pipeline(transaction=False) as pipe:
        for run in sent:
            pipe.lrange(keys.history_key(run["cluster"], scorer), 0, -1)
        histories = pipe.execute()
    for run, rows in zip(sent, histories, strict=True):
        cycles = (cycle for row in rows if (cycle := read_row(row)) is not None)
        if (cycle := answer(cycles, run["run"])) is not None:
            by_run[run["run"]] = cycle
    if len(_remembered) > _MOST_ENDED:
        _remembered.clear()
    _remembered.update(by_run)
    return by_run


def _note(actions: Actions, asked: RunRequest, note: str) -> None:
    """Record that it is started."""
    if asked.other:
        actions.compare(asked.scorer, asked.other, asked.clusters, asked.since, asked.every, note=note)
    else:
        actions.backtest(asked.scorer, asked.clusters[0], asked.since, asked.every, note=note)


def _source(act: str, runs: Effective) -> str:
    """Where the value that an action would change comes from; empty for one that asks for no value."""
    sources = {"interval": runs.interval_source, "pause": runs.paused_source, "resume": runs.paused_source}
    return sources.get(act, "")


def _whole(label: str, unit: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise FormError(f"{label}: a whole number of {unit} from 1 to {most}.")
    return int(text)


def read_until(text: str) -> float:
    """The end of a pause as a form has it, in unix seconds. Raises FormError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise FormError("Until: a date and time such as 2026-11-21T18:00, in UTC.") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    until = pause_end(moment)
    if until <= hubclock.now():
        raise FormError("Until: a future time in UTC.")
    return until
