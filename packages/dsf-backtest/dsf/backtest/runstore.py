"""Stores runs of backtests and comparisons in Redis for the page: summaries and lines, but no single moments."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any, Final, Literal

import redis
from pydantic import Field

from dsf.backtest.comparison import ComparisonView
from dsf.backtest.errors import BacktestError
from dsf.backtest.redisrights import make_backtests_key
from dsf.backtest.summary import COLUMNS, BacktestView
from dsf.fleet.views import Time, View
from dsf.process import hubclock
from dsf.store.client import parse_stored
from dsf.store.registry import Registry

#: Maximum runs of one scorer, and seconds after which a run expires.
MAX_RUNS: Final = 20
EXPIRY_SECONDS: Final = 7 * 86_400
#: Maximum items of one backtest: those that change most often.
MAX_ITEMS: Final = 8
#: Maximum backtests of one side, and maximum entries of each list, with exceptions by field name.
_MAX_ROWS: Final = 10
_MAX_ROWS_BY_FIELD: Final = {"line": COLUMNS, "spans": 100}
#: Maximum bytes of a run.
_MAX_BYTES: Final = 256 * 1024


class KeptRun(View):
    """A stored backtest on some clusters, or a stored comparison."""

    id: str = Field(description="Ids sort by the time of the start.")
    at: Time = Field(description="Time at which the run was started, or handed over.")
    by: str
    way: Literal["cli", "page"]
    clusters: list[str]
    scorers: list[str] = Field(default=[], description="Both of a comparison that was started, also without one.")
    is_running: bool = False
    problem: str = Field(default="", description="Why the result is missing or incomplete.")
    backtests: list[BacktestView] = Field(default=[], description="Backtests of the scorer; none for a comparison.")
    comparison: ComparisonView | None = None


def make_run_id(now: float) -> str:
    """Return an id for a run that starts at `now` (unix seconds). Ids sort by time."""
    return f"{int(now * 1000):015}-{secrets.token_hex(4)}"


def store_run(client: redis.Redis, scorers: Iterable[str], run: KeptRun) -> list[str]:
    """Store a run with each of these scorers that is registered, and return the names of these scorers.

    Keeps the newest MAX_RUNS of a scorer. Raises BacktestError if none of the scorers is registered, redis.RedisError.
    """
    registered_scorers = Registry(client).read_scorers()
    names = list(dict.fromkeys(scorers))
    stored_names = [name for name in names if name in registered_scorers]
    if not stored_names:
        raise BacktestError(f"nothing is kept: the hub has no scorer {' or '.join(map(repr, names))}")
    text = limit_size(run).model_dump_json(by_alias=True, exclude_defaults=True)
    for name in stored_names:
        key = make_backtests_key(name)
        client.hset(key, run.id, text)
        client.expire(key, EXPIRY_SECONDS)
        idents = sorted(str(ident) for ident in client.hkeys(key))
        if outdated_idents := [ident for ident in idents if ident not in idents[-MAX_RUNS:] or _is_old(ident)]:
            client.hdel(key, *outdated_idents)
    return stored_names


def read_runs(client: redis.Redis, scorer: str) -> list[KeptRun]:
    """Return the runs of a scorer, the newest first. Raises redis.RedisError."""
    texts_by_id = sorted(client.hgetall(make_backtests_key(scorer)).items(), reverse=True)
    runs = (parse_stored(KeptRun, scorer, str(text)) for ident, text in texts_by_id if not _is_old(str(ident)))
    return [run for run in runs if run is not None]


def _is_old(ident: str) -> bool:
    return ident < f"{int((hubclock.now() - EXPIRY_SECONDS) * 1000):015}"


def limit_size(run: KeptRun) -> KeptRun:
    """Return the run with bounded lists and texts, at most _MAX_BYTES; `problem` names what was omitted."""
    comparison = run.comparison
    if comparison is not None:
        sides = {
            name: [_limit_items(view) for view in getattr(comparison, name)] for name in ("backtests_a", "backtests_b")
        }
        comparison = comparison.model_copy(update=sides)
    run_with_limited_items = run.model_copy(
        update={"backtests": [_limit_items(view) for view in run.backtests], "comparison": comparison}
    )
    limited_run = KeptRun.model_validate(_limit_entries(run_with_limited_items.model_dump()))
    if len(run.clusters) > _MAX_ROWS:
        limited_run = _add_note(limited_run, f"{len(run.clusters)} clusters were tested; {_MAX_ROWS} are shown")
    # A run within these bounds may still be too large.
    if limited_run.comparison is not None and len(limited_run.model_dump_json()) > _MAX_BYTES:
        bare_comparison = limited_run.comparison.model_copy(update={"backtests_a": [], "backtests_b": []})
        limited_run = _add_note(
            limited_run.model_copy(update={"comparison": bare_comparison}), "its lines are too large to be shown"
        )
    if len(limited_run.model_dump_json()) > _MAX_BYTES:
        limited_run = limited_run.model_copy(update={"backtests": limited_run.backtests[:1], "comparison": None})
        limited_run = _add_note(limited_run, "too large to be shown as a whole")
    return limited_run


def _limit_items(view: BacktestView) -> BacktestView:
    dropped_items = len(view.items) - MAX_ITEMS
    if dropped_items <= 0:
        return view
    note = f"and {dropped_items} items more, which changed less often"
    return view.model_copy(update={"items": view.items[:MAX_ITEMS], "notes": [note, *view.notes]})


def _limit_entries(value: Any, max_entries: int = _MAX_ROWS) -> Any:
    """Return dumped data with at most `max_entries` entries of a list, and the first characters of long texts."""
    if isinstance(value, dict):
        return {name: _limit_entries(entry, _MAX_ROWS_BY_FIELD.get(name, _MAX_ROWS)) for name, entry in value.items()}
    if isinstance(value, list):
        return [_limit_entries(entry) for entry in value[:max_entries]]
    return value[:500] if isinstance(value, str) else value


def _add_note(run: KeptRun, text: str) -> KeptRun:
    return run.model_copy(update={"problem": f"{run.problem}; {text}" if run.problem else text})
