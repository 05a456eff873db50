"""Actions of users on the page: affected clusters, execution and outcome."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import redis
from fastapi import HTTPException

from dsf import keys
from dsf.api.meta import pause_end
from dsf.api.types import MAX_SECONDS
from dsf.errors import UnknownScorerError
from dsf.fleet.actions import Actions
from dsf.fleet.changes import MAX_NOTE, Actor
from dsf.fleet.rescore import RunView, answer
from dsf.process import hubclock
from dsf.store.entries import Effective
from dsf.store.history import HistoryEntry, read_row
from dsf.web.access import PageUser
from dsf.web.pages import Act, ActionTarget, FormError, PluginActions, Query, Sources, plugins
from dsf.web.rendering import segment

#: Most runs of one action that are tracked; more are only counted.
MAX_RUNS: Final = 200
#: Most ended cycles that are remembered.
_MOST_ENDED: Final = 20 * MAX_RUNS

#: Ended cycles of such runs, by run id: the history of a pair soon has others.
_remembered: dict[str, HistoryEntry] = {}


_ACTS: Final = (
    Act("rescore", "Score now", "Score now", "sends one tick now; the schedule does not change"),
    Act("pause", "Pause", "Pause", "sends no ticks until then; existing scores expire as usual"),
    Act("resume", "Resume", "Resume", "ends a pause, including `suspend` in the DynamicScorer; it runs immediately"),
    Act("interval", "Set the interval", "Set the interval", "stays until it is reset"),
    Act("reset", "Reset", "Reset", "removes overrides: intervals and pauses"),
)


def all_acts() -> dict[str, Act]:
    """Return the page's own actions and those of plug-ins, by name."""
    return {act.name: act for act in (*_ACTS, *(act for plugin in plugins().values() for act in plugin.acts))}


class ActionRunner:
    """Performs actions. Methods raise redis.RedisError, and UnknownScorerError or UnknownClusterError."""

    def __init__(self, sources: Sources) -> None:
        self._reading = sources.reading
        self._redis = sources.reading.redis
        self._settings = sources.settings
        #: Those that perform actions of plug-ins, by the action's name.
        self._of_plugins: dict[str, PluginActions] = {}
        for plugin in plugins().values():
            if plugin.actions is not None:
                self._of_plugins |= dict.fromkeys((act.name for act in plugin.acts), plugin.actions(sources))

    def stop(self) -> None:
        """End what actions of plug-ins still do."""
        for actions in set(self._of_plugins.values()):
            actions.stop()

    def context(self, act: str, target: ActionTarget) -> dict[str, Any]:
        """Data of the form of a plug-in's action."""
        return self._of_plugins[act].context(act, target) if act in self._of_plugins else {}

    def affected(self, act: str, target: ActionTarget) -> tuple[list[str], list[str]]:
        """Return the affected clusters, and those that keep an override of their own, which goes before that of all."""
        self._reading.registry.scorer(target.scorer)
        targets = self._reading.targets(target.scorer)
        if target.cluster is None:
            overridden_clusters = [
                name for name, runs in targets.items() if _source(act, runs) == keys.pair(name, target.scorer)
            ]
            return [name for name in targets if name not in overridden_clusters], overridden_clusters
        if target.cluster not in targets:
            raise UnknownScorerError(f"scorer {target.scorer!r} does not run on cluster {target.cluster!r}")
        return [target.cluster], []

    def do(
        self, act: str, target: ActionTarget, form: Mapping[str, str], caller: PageUser
    ) -> tuple[str, dict[str, str]]:
        """Perform the action; returns path and query of the page to show then.

        Raises FormError before any change.
        """
        note = note_of(form)
        actions = Actions(self._redis, self._settings, Actor(name=caller.name, claimed=caller.claimed, way="page"))
        scorer, clusters = target.scorer, [target.cluster] if target.cluster else None
        if act == "rescore":
            runs = actions.rescore(scorer, clusters, note=note)
            return f"/outcomes/{self._keep(scorer, runs)}", {}
        if act in self._of_plugins:
            return self._of_plugins[act].perform(act, target, form, caller, actions)
        if act == "pause":
            until = form.get("until", "").strip()
            actions.pause(scorer, clusters, read_until(until) if until else None, note=note)
        elif act == "resume":
            actions.resume(scorer, clusters, note=note)
        elif act == "interval":
            actions.set_interval(
                scorer, clusters, whole_number("Interval", "seconds", form.get("seconds", ""), MAX_SECONDS), note=note
            )
        else:
            actions.reset(scorer, clusters, note=note)
        return place_of(target), {}

    def _keep(self, scorer: str, runs: list[RunView]) -> str:
        ident = secrets.token_urlsafe(12)
        run_rows = [{"cluster": run.cluster, "run": run.run_id, "message": run.message} for run in runs[:MAX_RUNS]]
        record = {"v": keys.SCHEMA_VERSION, "scorer": scorer, "runs": run_rows, "more": max(0, len(runs) - MAX_RUNS)}
        self._redis.set(keys.web_outcome(ident), json.dumps({**record, "at": hubclock.now()}), ex=3600)
        return ident


def outcome(sources: Sources, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    """Data of the page that shows what came of an action's runs. Raises HTTPException (404) if that has expired."""
    text = sources.reading.redis.get(keys.web_outcome(names["ident"]))
    if text is None:
        raise HTTPException(404)
    record = json.loads(str(text))
    cycle_by_run = _ended(sources.reading.redis, record["scorer"], record["runs"])
    runs = [{**run, "cycle": cycle_by_run.get(run["run"])} for run in record["runs"]]
    open_runs = sum(run["run"] != "" and run["cycle"] is None for run in runs)
    title = f"Scored now: {record['scorer']}"
    return {"title": title, "every": 1 if open_runs else 0, "outcome": {**record, "runs": runs, "open": open_runs}}


def _ended(client: redis.Redis, scorer: str, runs: Sequence[Mapping[str, str]]) -> dict[str, HistoryEntry]:
    """Ended cycles of the runs by run id: one round trip, usually without parsing older cycles."""
    by_run = {run["run"]: cycle for run in runs if (cycle := _remembered.get(run["run"])) is not None}
    open_runs = [run for run in runs if run["run"] and run["run"] not in by_run]
    with client.pipeline(transaction=False) as pipe:
        for run in open_runs:
            pipe.lrange(keys.history_key(run["cluster"], scorer), 0, -1)
        histories = pipe.execute()
    for run, rows in zip(open_runs, histories, strict=True):
        cycles = (cycle for row in rows if (cycle := read_row(row)) is not None)
        if (cycle := answer(cycles, run["run"])) is not None:
            by_run[run["run"]] = cycle
    if len(_remembered) > _MOST_ENDED:
        _remembered.clear()
    _remembered.update(by_run)
    return by_run


def _source(act: str, runs: Effective) -> str:
    """Where the value that an action would change comes from; empty for one that asks for no value."""
    sources = {"interval": runs.interval_source, "pause": runs.paused_source, "resume": runs.paused_source}
    return sources.get(act, "")


def place_of(target: ActionTarget) -> str:
    """Return the path of the page about a target."""
    if target.cluster is None:
        return f"/scorers/{segment(target.scorer)}"
    return f"/clusters/{segment(target.cluster)}/scorers/{segment(target.scorer)}"


def note_of(form: Mapping[str, str]) -> str:
    """Return the note in a form. Raises FormError."""
    note = form.get("note", "").strip()
    if len(note) > MAX_NOTE:
        raise FormError(f"Note: at most {MAX_NOTE} characters.")
    return note


def whole_number(label: str, unit: str, text: str, maximum: int) -> int:
    """Return the number in a field of a form. Raises FormError."""
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= maximum):
        raise FormError(f"{label}: a whole number of {unit} from 1 to {maximum}.")
    return int(text)


def read_until(text: str) -> float:
    """Return the end of a pause as a form has it, in unix seconds. Raises FormError."""
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
