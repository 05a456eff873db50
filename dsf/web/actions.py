"""Performs the actions of users on the page, and reports the clusters they affect and their outcome."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import redis
from fastapi import HTTPException

from dsf import keys
from dsf.api.meta import limit_pause_end
from dsf.api.types import MAX_SECONDS
from dsf.errors import UnknownScorerError
from dsf.fleet.actions import Actions
from dsf.fleet.changes import MAX_NOTE, Actor
from dsf.fleet.rescore import RunView, find_cycle
from dsf.process import hubclock
from dsf.store.entries import EffectiveSchedule
from dsf.store.history import HistoryEntry, parse_row
from dsf.web.access import PageUser
from dsf.web.pages import Act, ActionTarget, FormError, PluginActions, Query, Sources, load_plugins
from dsf.web.rendering import quote_segment

#: Maximum runs of one action whose cycles are tracked. Further runs are only counted.
MAX_RUNS: Final = 200
#: Maximum ended cycles in memory.
_MAX_ENDED_CYCLES: Final = 20 * MAX_RUNS
#: Seconds for which the outcome of an action is stored in Redis.
_OUTCOME_SECONDS: Final = 3600

#: Ended cycles of tracked runs by run id. They are stored here, because newer cycles soon replace them in the history
#: of the pair.
_ended_cycles: dict[str, HistoryEntry] = {}


_ACTS: Final = (
    Act("rescore", "Score now", "Score now", "sends one tick now; the schedule does not change"),
    Act("pause", "Pause", "Pause", "sends no ticks until then; existing scores expire as usual"),
    Act("resume", "Resume", "Resume", "ends a pause, including `suspend` in the DynamicScorer; it runs immediately"),
    Act("interval", "Set the interval", "Set the interval", "stays until it is reset"),
    Act("reset", "Reset", "Reset", "removes overrides: intervals and pauses"),
)


def list_acts() -> dict[str, Act]:
    """Return the page's own actions and those of plug-ins, by name."""
    return {act.name: act for act in (*_ACTS, *(act for plugin in load_plugins().values() for act in plugin.acts))}


class ActionRunner:
    """Performs the actions of this package and of plug-ins.

    Methods raise redis.RedisError if Redis is unavailable, and UnknownScorerError or UnknownClusterError for unknown
    names.
    """

    def __init__(self, sources: Sources) -> None:
        self._reading = sources.reading
        self._redis = sources.reading.redis
        self._settings = sources.settings
        #: The objects that perform the actions of plug-ins, by the action's name.
        self._plugin_actions: dict[str, PluginActions] = {}
        for plugin in load_plugins().values():
            if plugin.make_actions is not None:
                self._plugin_actions |= dict.fromkeys((act.name for act in plugin.acts), plugin.make_actions(sources))

    def stop(self) -> None:
        """Stop the actions of plug-ins that are still running."""
        for actions in set(self._plugin_actions.values()):
            actions.stop()

    def build_form_data(self, act: str, target: ActionTarget) -> dict[str, Any]:
        """Return the template data for the form of a plug-in's action; empty for an action of this package."""
        return self._plugin_actions[act].build_form_data(act, target) if act in self._plugin_actions else {}

    def find_affected_clusters(self, act: str, target: ActionTarget) -> tuple[list[str], list[str]]:
        """Return the affected clusters, and the unaffected clusters.

        A cluster with its own override is unaffected by an action on all clusters, because its override takes
        precedence.
        """
        # Raises UnknownScorerError for a scorer that is not registered.
        self._reading.registry.read_scorer(target.scorer)
        targets = self._reading.read_schedules(target.scorer)
        if target.cluster is None:
            overridden_clusters = [
                name
                for name, schedule in targets.items()
                if _find_value_source(act, schedule) == keys.pair(name, target.scorer)
            ]
            return [name for name in targets if name not in overridden_clusters], overridden_clusters
        if target.cluster not in targets:
            raise UnknownScorerError(f"scorer {target.scorer!r} does not run on cluster {target.cluster!r}")
        return [target.cluster], []

    def perform(
        self, act: str, target: ActionTarget, form: Mapping[str, str], caller: PageUser
    ) -> tuple[str, dict[str, str]]:
        """Perform the action, and return path and query of the page to show next.

        Raises FormError for invalid fields before it changes anything.
        """
        note = parse_note(form)
        actions = Actions(self._redis, self._settings, Actor(name=caller.name, claimed=caller.claimed, way="page"))
        scorer, clusters = target.scorer, [target.cluster] if target.cluster else None
        if act == "rescore":
            runs = actions.rescore(scorer, clusters, note=note)
            return f"/outcomes/{self._store_outcome(scorer, runs)}", {}
        if act in self._plugin_actions:
            return self._plugin_actions[act].perform(act, target, form, caller, actions)
        if act == "pause":
            end_text = form.get("until", "").strip()
            actions.pause(scorer, clusters, parse_pause_end(end_text) if end_text else None, note=note)
        elif act == "resume":
            actions.resume(scorer, clusters, note=note)
        elif act == "interval":
            actions.set_interval(
                scorer,
                clusters,
                parse_whole_number("Interval", "seconds", form.get("seconds", ""), MAX_SECONDS),
                note=note,
            )
        else:
            actions.reset(scorer, clusters, note=note)
        return get_target_path(target), {}

    def _store_outcome(self, scorer: str, runs: list[RunView]) -> str:
        """Store the runs of an action in Redis, and return the identifier of their page."""
        ident = secrets.token_urlsafe(12)
        run_rows = [{"cluster": run.cluster, "run": run.run_id, "message": run.message} for run in runs[:MAX_RUNS]]
        record = {"v": keys.SCHEMA_VERSION, "scorer": scorer, "runs": run_rows, "more": max(0, len(runs) - MAX_RUNS)}
        self._redis.set(keys.web_outcome(ident), json.dumps({**record, "at": hubclock.now()}), ex=_OUTCOME_SECONDS)
        return ident


def build_outcome_page(sources: Sources, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    """Return the data of the page with the outcome of an action's runs.

    Raises HTTPException (404) if the outcome has expired.
    """
    text = sources.reading.redis.get(keys.web_outcome(names["ident"]))
    if text is None:
        raise HTTPException(404)
    record = json.loads(str(text))
    cycle_by_run = _find_ended_cycles(sources.reading.redis, record["scorer"], record["runs"])
    runs = [{**run, "cycle": cycle_by_run.get(run["run"])} for run in record["runs"]]
    open_runs = sum(run["run"] != "" and run["cycle"] is None for run in runs)
    title = f"Scored now: {record['scorer']}"
    return {"title": title, "every": 1 if open_runs else 0, "outcome": {**record, "runs": runs, "open": open_runs}}


def _find_ended_cycles(client: redis.Redis, scorer: str, runs: Sequence[Mapping[str, str]]) -> dict[str, HistoryEntry]:
    """Return the ended cycles of the runs by run id, with one round trip to Redis."""
    cycle_by_run = {run["run"]: cycle for run in runs if (cycle := _ended_cycles.get(run["run"])) is not None}
    open_runs = [run for run in runs if run["run"] and run["run"] not in cycle_by_run]
    with client.pipeline(transaction=False) as pipe:
        for run in open_runs:
            pipe.lrange(keys.history_key(run["cluster"], scorer), 0, -1)
        histories = pipe.execute()
    for run, rows in zip(open_runs, histories, strict=True):
        # A generator parses rows only up to the cycle of the run, which is usually the first one.
        cycles = (cycle for row in rows if (cycle := parse_row(row)) is not None)
        if (cycle := find_cycle(cycles, run["run"])) is not None:
            cycle_by_run[run["run"]] = cycle
    if len(_ended_cycles) > _MAX_ENDED_CYCLES:
        _ended_cycles.clear()
    _ended_cycles.update(cycle_by_run)
    return cycle_by_run


def _find_value_source(act: str, schedule: EffectiveSchedule) -> str:
    """Return the origin of the value that an action would change; empty for an action that changes no value."""
    sources = {
        "interval": schedule.interval_source,
        "pause": schedule.paused_source,
        "resume": schedule.paused_source,
    }
    return sources.get(act, "")


def get_target_path(target: ActionTarget) -> str:
    """Return the path of the page about a target."""
    if target.cluster is None:
        return f"/scorers/{quote_segment(target.scorer)}"
    return f"/clusters/{quote_segment(target.cluster)}/scorers/{quote_segment(target.scorer)}"


def parse_note(form: Mapping[str, str]) -> str:
    """Return the note in a form. Raises FormError if it is too long."""
    note = form.get("note", "").strip()
    if len(note) > MAX_NOTE:
        raise FormError(f"Note: at most {MAX_NOTE} characters.")
    return note


def parse_whole_number(label: str, unit: str, text: str, maximum: int) -> int:
    """Return the number in a form field. Raises FormError unless it is from 1 to `maximum`.

    `label` and `unit` name the field and its unit in the error text.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= maximum):
        raise FormError(f"{label}: a whole number of {unit} from 1 to {maximum}.")
    return int(text)


def parse_pause_end(text: str) -> float:
    """Return the end of a pause in unix seconds.

    `text` is a date and time in ISO 8601, in UTC unless it has an offset. Raises FormError if it is invalid or past.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise FormError("Until: a date and time such as 2026-11-21T18:00, in UTC.") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    end = limit_pause_end(moment)
    if end <= hubclock.now():
        raise FormError("Until: a future time in UTC.")
    return end
