"""A long run of `bench.fleet` with faults: what they are, and what is judged of it.

Every 20 to 40 seconds, by chance from a seed, one of these, each once before any comes again:

    beat, hub, web, results   SIGKILL; started again after 1 to 5 s (with `--single` hub is all of them)
    redis                          SIGTERM, so that it writes down what it knows; started again after 1 to 5 s
    store                          for 10 to 20 s nothing of `_out/clusters` can be read or written: ManifestWorks,
                                   credentials and AddOnPlacementScores, as while the API server is away
    clusters                       5 % of the agents do nothing for 10 to 40 s, as processes that are stopped

Meanwhile half of the cycles of 3 scorers fail. The fleet has 10 scorers for each cluster, so that is a larger share
than 3 of 50. No result is to be lost: as many cycles end as `lost` as ticks reached no agent, which is possible in the
moment in which Redis ends. No cycle of the other scorers is to end as `error`, and their scores are never older than 2
intervals and the time for which a fault held them up. Only the fault's own duration counts, without the time that the
product needs to recover.

Memory is flat when the first and the last tenth of the time after the warm-up differ by 5 % at most. The memory of
Redis is judged only after all histories have been overwritten since the start of the soak: 25 minutes, and as much
again. A process that was killed begins anew, so this sees what piles up in Redis, and what a process takes that reads
it: a leak that needs hours in one process is for a run without kills.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from bench.common import Figure
from bench.fleetworld import INTERVAL, Totals, World
from bench.hub import SCORERS
from bench.soakjudge import FRESH, Fault, Judge, format_counts
from dsf import keys
from dsf.messages import run_time
from dsf.store.pairs import OUTCOMES, Pairs
from dsf.store.runs import HISTORY_LENGTH

#: Number of scorers, the last ones of the fleet, of which half of the cycles fail.
BAD = 3
#: Ranges in seconds: between two faults, for which a process is down, for which the store is, and for which agents
#: pause.
_BETWEEN, _AWAY, _STORE_AWAY, _QUIET = (20.0, 40.0), (1.0, 5.0), (10.0, 20.0), (10.0, 40.0)
_QUIET_SHARE = 0.05
#: Seconds at the end without a new fault, so that each fault is over by then.
_LAST = 10.0
#: Maximum change of memory in percent.
_FLAT = 5.0
#: Pairs whose object is read at the end, and seconds until it must have the score.
_READ, _WRITTEN_WITHIN = 200, 120.0


class Soak:
    """Faults for `seconds`. Call `run`, then read the totals, then call `figures`. Use it in the main thread."""

    def __init__(self, world: World, seconds: float, seed: int) -> None:
        self._world = world
        self._seconds = seconds
        self._random = random.Random(seed)
        self._bad = [f"scorer-{number}" for number in range(SCORERS - BAD, SCORERS)]
        self._good = [pair for pair in world.pairs if pair[1] not in self._bad]
        self._faults: list[Fault] = []
        #: Processes that ended without a kill.
        self._deaths: list[str] = []
        self._judge = Judge(world, self._good, self._faults, seed)
        self._initial_outcomes: Counter[str] = Counter()
        self._began = 0.0
        # Each function gets the remaining seconds of the soak.
        self._kinds: dict[str, Callable[[float], None]] = {
            **{name: lambda _, name=name: self._kill(name) for name in world.hub_processes},  # type: ignore[misc]
            "redis": lambda _: self._restart_redis(),
            "store": self._hide_store,
            "clusters": self._pause_agents,
        }

    def run(self) -> None:
        """Make faults for the given time, and check the processes each second."""
        self._world.fill_histories()
        self._initial_outcomes = self._count_outcomes()
        self._world.player.send_command("bad", *self._bad)
        self._began = time.time()
        end = time.monotonic() + self._seconds
        scraper = self._world.make_scraper(end)
        with self._judge:
            order: list[str] = []
            # The first fault comes earlier.
            planned = time.monotonic() - _BETWEEN[0] / 2
            while True:
                if not order:
                    order = self._random.sample(sorted(self._kinds), len(self._kinds))
                planned += self._choose_gap(end - planned)
                if planned > end - _LAST:
                    break
                self._wait(planned - time.monotonic())
                self._kinds[order.pop()](end - time.monotonic())
            self._wait(end - time.monotonic())
        self._world.player.send_command("bad")
        scraper.join(130)

    def _choose_gap(self, remaining_seconds: float) -> float:
        """Return the seconds until the next fault; fewer if a kind of fault would not occur otherwise."""
        shortest, longest = _BETWEEN
        missing_kinds = len(self._kinds) - len({fault.kind for fault in self._faults})
        gap = self._random.uniform(shortest, longest)
        return max(shortest, min(gap, (remaining_seconds - _LAST) / missing_kinds)) if missing_kinds > 0 else gap

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (remaining_seconds := end - time.monotonic()) > 0:
            time.sleep(min(remaining_seconds, 0.5))
            self._deaths += [f"{what} at {time.time() - self._began:.0f} s" for what in self._world.processes.revive()]

    # --- faults ----------------------------------------------------------------------------------------------------

    def _begin(self, kind: str, *clusters: str, holds_up: bool = True) -> Fault:
        fault = Fault(kind, time.time(), holds_up, frozenset(clusters))
        self._faults.append(fault)
        return fault

    def _kill(self, name: str) -> None:
        # Scores continue without the controller and the page, if these are separate processes.
        fault = self._begin(name, holds_up=self._world.single or name in ("beat", "results"))
        restart = self._world.processes.kill(name)
        self._wait(self._random.uniform(*_AWAY))
        restart()
        fault.ended_at = time.time()

    def _restart_redis(self) -> None:
        fault = self._begin("redis")
        self._world.stop_redis()
        self._wait(self._random.uniform(*_AWAY))
        self._world.start_redis()
        fault.ended_at = time.time()

    def _hide_store(self, remaining_seconds: float) -> None:
        fault = self._begin("store", holds_up=False)
        folder = self._world.out / "clusters"
        objects = folder.readlink()
        # A link to itself can be neither read nor written, even by root: an error instead of an empty folder. Replaced
        # in one step, because a writer would create a missing folder.
        _link(folder, Path(folder.name))
        try:
            self._wait(min(self._random.uniform(*_STORE_AWAY), remaining_seconds))
        finally:
            _link(folder, objects)
            fault.ended_at = time.time()

    def _pause_agents(self, remaining_seconds: float) -> None:
        """Pause some agents. The next fault does not wait for the end of this one."""
        now = time.time()
        paused_clusters = {cluster for fault in self._faults if fault.ended_at > now for cluster in fault.clusters}
        other_clusters = [cluster for cluster in self._world.clusters if cluster not in paused_clusters]
        quiet_clusters = self._random.sample(other_clusters, max(1, round(_QUIET_SHARE * len(other_clusters))))
        seconds = min(self._random.uniform(*_QUIET), remaining_seconds)
        fault = self._begin("clusters", *quiet_clusters)
        self._world.player.send_command("quiet", f"{seconds:.1f}", *quiet_clusters)
        fault.ended_at = fault.began + seconds

    # --- judgement -------------------------------------------------------------------------------------------------

    def make_figures(self, name: str, books: Totals) -> tuple[list[Figure], dict[str, Any]]:
        """Return rows and details, after the last run has ended."""
        self._judge.check_all_pairs()
        judged = self._judge.seen
        outcome_counts = self._count_outcomes() - self._initial_outcomes
        # A tick is delivered at most once: ticks that Redis had not delivered when it ended have no result.
        ticks_sent = int(self._world.client.hget(keys.BEAT_STATS, "ticks") or 0)
        unreached = ticks_sent - self._world.player.counts["ticks"]
        lost = (
            sum(state.count("lost") for state in Pairs(self._world.client).read_states(self._world.pairs)) - unreached
        )
        text = ", ".join(f"{outcome} {outcome_counts[outcome]}" for outcome in OUTCOMES if outcome_counts[outcome])
        twice, differ = self._find_duplicates(), self._find_differing_objects()
        rejected = dict(self._world.client.hgetall(keys.REJECTED))
        faults = format_counts(fault.kind for fault in self._faults)
        name = f"{name}, {self._seconds:g} s with faults"
        figures = [
            Figure(
                f"{name}: oldest score of a good scorer",
                f"{judged.oldest:.0f} s ({judged.oldest_pair}); older than {FRESH:g} intervals in "
                f"{judged.old} of {judged.checks} checks, Redis unreachable in {judged.unreachable}",
                judged.oldest_own / INTERVAL,
                "intervals",
                "without what faults held up",
                upper_limit=FRESH,
            ),
            *self._memory(name),
            Figure(
                f"{name}: results that were lost, and cycles of good scorers that failed",
                f"{text}; {unreached} ticks of all scorers reached no agent; "
                + ("; ".join(self._judge.losses[:10]) or "none lost"),
                abs(lost) + outcome_counts["error"],
                "cycles",
                f"faults: {faults}",
                upper_limit=0,
            ),
            Figure(
                f"{name}: books, pair by pair",
                f"{books.wrong} cycles without exactly one outcome, {twice} runs twice in a history, "
                f"{books.scheduled} scheduled of {books.ticks} by beat; refused results: {rejected or 'none'}",
                books.wrong + twice + abs(books.scheduled - books.ticks),
                "cycles wrong",
                upper_limit=0,
            ),
            Figure(
                f"{name}: objects that are not as their scores",
                f"{differ} of {min(_READ, len(self._good))}",
                differ,
                "objects",
                upper_limit=0,
            ),
            Figure(
                f"{name}: processes that ended by themselves",
                "; ".join(self._deaths) or "none",
                len(self._deaths),
                "processes",
                upper_limit=0,
            ),
        ]
        details = {
            "faults": [(fault.kind, fault.began - self._began, fault.ended_at - fault.began) for fault in self._faults],
            "losses": self._judge.losses,
            "unreached": unreached,
            "outcomes": dict(outcome_counts),
            "oldest": judged.oldest,
            "old": judged.old,
            "looks": judged.checks,
            "waiting": max(judged.waiting, default=0),
            "memory": {process: sizes[:: max(1, len(sizes) // 200)] for process, sizes in judged.memory.items()},
            "deaths": self._deaths,
            "player": dict(self._world.player.counts),
        }
        return figures, details

    def _memory(self, name: str) -> list[Figure]:
        turned_over = float(HISTORY_LENGTH * INTERVAL) + INTERVAL
        warm_up = min(turned_over, self._seconds / 2)
        used_label = "used by Redis"
        trend_by_process = {process: self._judge.compute_trend(process, warm_up) for process in self._judge.seen.memory}
        trends = {process: trend for process, trend in trend_by_process.items() if trend is not None}
        rss = {process: trend for process, trend in trends.items() if process not in (used_label, "redis")}
        text = ", ".join(f"{process} {trend:+.1f} %" for process, trend in rss.items())
        figures = [
            Figure(
                f"{name}: change of resident memory",
                f"{text}; after {warm_up:.0f} s",
                max(map(abs, rss.values()), default=float("nan")),
                "percent",
                "first and last tenth",
                upper_limit=_FLAT,
            )
        ]
        if used_label in trends:
            is_long = self._seconds >= 2 * turned_over
            figures.append(
                Figure(
                    f"{name}: change of what Redis uses",
                    f"{trends[used_label]:+.1f} %, resident {trends.get('redis', float('nan')):+.1f} %"
                    + ("" if is_long else "; too short to judge"),
                    abs(trends[used_label]),
                    "percent",
                    upper_limit=_FLAT if is_long else None,
                )
            )
        return figures

    def _count_outcomes(self) -> Counter[str]:
        """Return the outcomes of all cycles of the good scorers so far."""
        totals: Counter[str] = Counter()
        for state in Pairs(self._world.client).read_states(self._good):
            totals.update({outcome: state.count(outcome) for outcome in OUTCOMES})
        return totals

    def _find_duplicates(self) -> int:
        """Return the runs of this soak that a history has more than once."""
        twice = 0
        for runs in Pairs(self._world.client).read_past_runs(self._world.pairs):
            own_runs = [run for run in runs if run_time(run) > self._began]
            twice += len(own_runs) - len(set(own_runs))
        return twice

    def _find_differing_objects(self) -> int:
        """Return the objects of some good scorers that differ from their scores after the time for writing."""
        unwritten_pairs = self._random.sample(self._good, min(_READ, len(self._good)))
        deadline = time.monotonic() + _WRITTEN_WITHIN
        while unwritten_pairs and time.monotonic() < deadline:
            unwritten_pairs = [pair for pair in unwritten_pairs if not self._is_written(*pair)]
            time.sleep(0.5)
        return len(unwritten_pairs)

    def _is_written(self, cluster: str, scorer: str) -> bool:
        score = Pairs(self._world.client).read_state(cluster, scorer).score
        file = self._world.out / "clusters" / cluster / "addonplacementscores" / f"{scorer}.yaml"
        try:
            written_scores = yaml.safe_load(file.read_text(encoding="utf-8"))["status"]["scores"]
        except FileNotFoundError:
            written_scores = []
        return score is not None and sorted(score.items) == sorted(
            (score_item["name"], score_item["value"]) for score_item in written_scores
        )


def _link(link: Path, target: Path) -> None:
    """Replace `link` by a link to `target`, in one step."""
    new = link.with_name(f".{link.name}")
    new.symlink_to(target)
    new.replace(link)
