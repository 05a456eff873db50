"""Random faults on two clusters and a hub of one process, each kind at least once; afterwards the books balance.

`DSF_SOAK_SECONDS` (45) is the duration of the faults, `DSF_SOAK_SEED` selects them. `make soak` takes an hour.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from dsf import keys
from dsf.errors import QueueFullError
from dsf.store.agents import count_waiting_results
from dsf.store.pairs import OUTCOMES
from dsf.store.ticks import send_now
from tests.faults.fleet import SERIES, Fleet, scores
from tests.support import httpserver
from tests.support.httpserver import Gate, answer, matrix, slow
from tests.support.stack import pass_time

SECONDS = float(os.environ.get("DSF_SOAK_SECONDS", "45"))
SEED = int(os.environ.get("DSF_SOAK_SEED", "7"))

pytestmark = [pytest.mark.soak, pytest.mark.timeout(SECONDS + 1200)]

CLUSTERS = ("c1", "c2")
SCORERS = ("plain", "queried", "slowly", "limited", "removing", "odd")
PAIRS = [(cluster, scorer) for cluster in CLUSTERS for scorer in SCORERS]

EMPTY = answer({"results": []})
PARTIAL = answer('{"results": [{"metric": {"node": "a"}, "score": NaN}, {"metric": {"node": "b"}, "score": 5}]}')
BAD_SCORERS = (
    answer("broken", 500),
    answer("busy", 429, Retry_After="1"),
    answer("<html>", Content_Type="text/html"),
    EMPTY,
    PARTIAL,
    httpserver.send_half,
    httpserver.close_early,
    slow(0.7, scores(1)),
    slow(3.0, scores(2)),
)
BAD_SOURCES = (
    answer("starting", 503),
    answer({"status": "error", "errorType": "bad_data", "error": "parse error"}, 400),
    httpserver.send_half_chunked,
    slow(3.0, matrix(SERIES)),
)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    stack = Fleet(
        tmp_path_factory.mktemp("soak") / "stack",
        CLUSTERS,
        single=True,
        # The faults already cause runs that end late; waiting a minute for each lost run would add nothing.
        altered={"whole": ("--run-slack", "5")},
        # The mix has no health checks.
        settings={"whole": {"queue_limit": 8, "health_interval": 5}},
    )
    stack.scorer("plain", scores(10))
    stack.scorer("queried", scores(20), query="up")
    stack.scorer("slowly", scores(30), interval=2, query="up")
    stack.scorer("limited", scores(40), execution={"rateLimit": "1/s"})
    stack.scorer("removing", scores(50), execution={"whenFailing": {"behavior": "Remove", "failureThreshold": 1}})
    stack.scorer("odd", scores(60, 61), interval=2, execution={"maxRetries": 0, "validitySeconds": 5})
    with stack:
        for cluster, scorer in PAIRS:
            stack.wait_success(scorer, cluster)
        yield stack


class Mix:
    """Random faults, and actions that they schedule for later."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet = fleet
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.rescored: Counter[str] = Counter()
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._actions: list[tuple[int, Callable[[], None]]] = [
            (20, self.scorer_fails),
            (8, self.source_fails),
            (12, self.rescore),
            (6, self.pause),
            (4, self.change_interval),
            (4, self.kill_agent),
            (2, self.freeze_agent),
            (5, self.kill_hub),
            (1, self.kill_redis),
            (3, self.push_malformed_result),
        ]

    def run(self, seconds: float) -> None:
        """Make faults for so long, each kind at least once, then put everything right."""
        end = time.monotonic() + seconds
        kinds, weights = [action for _, action in self._actions], [weight for weight, _ in self._actions]
        # Each kind once, also where a busy machine gets to few of them; from then on by chance.
        first = self.random.sample(kinds, len(kinds))
        while first or time.monotonic() < end:
            action = first.pop() if first else self.random.choices(kinds, weights)[0]
            self.done[action.__name__] += 1
            action()
            pass_time(self.random.uniform(0.1, 0.6))
            self.catch_up(time.monotonic())
            for cluster, scorer in self.random.sample(PAIRS, 2):
                # The books balance at every moment, not only in the end.
                self.fleet.check_books(scorer, cluster)
        self.catch_up(float("inf"))

    def add_missing_outcomes(self) -> None:
        """Make sure that cycles ended in every possible way, because random faults may leave some out."""
        for outcome, handler in (("empty", EMPTY), ("partial", PARTIAL)):
            self.fleet.api.script(handler, path="/odd")
            self.fleet.until(lambda outcome=outcome: self.fleet.state("odd").count(outcome), outcome)  # type: ignore[misc]
        self.fleet.api.script(scores(60), path="/odd")
        gate = Gate(scores(10))
        self.fleet.api.script(gate, path="/plain")
        assert gate.entered.wait(120)
        for cluster in CLUSTERS:
            self.fleet.restart(f"agent {cluster}")
        gate.opened.set()
        self.fleet.api.script(scores(10), path="/plain")

    def catch_up(self, now: float) -> None:
        """Run the actions that are due."""
        due = [entry for entry in self._later if entry[0] <= now]
        self._later = [entry for entry in self._later if entry[0] > now]
        for _, action in due:
            action()

    def schedule_later(self, longest: float, action: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + self.random.uniform(0, longest), action))

    # --- faults --------------------------------------------------------------------------------------------------

    def scorer_fails(self) -> None:
        scorer = self.random.choice(SCORERS)
        self.fleet.api.script(self.random.choice(BAD_SCORERS), path=f"/{scorer}")
        valid_scores = scores(self.random.randint(-120, 120))
        self.schedule_later(5, lambda: self.fleet.api.script(valid_scores, path=f"/{scorer}"))

    def source_fails(self) -> None:
        scorer = self.random.choice(("queried", "slowly"))
        self.fleet.source.script(self.random.choice(BAD_SOURCES), path=f"/{scorer}")
        self.schedule_later(5, lambda: self.fleet.source.script(matrix(SERIES), path=f"/{scorer}"))

    def rescore(self) -> None:
        cluster, scorer = self.random.choice(PAIRS)
        try:
            send_now(self.fleet.redis, cluster, scorer, 2, queue_limit=8)
        except QueueFullError:
            return
        self.rescored[keys.pair(cluster, scorer)] += 1

    def pause(self) -> None:
        target = keys.pair(self.random.choice(("*", *CLUSTERS)), self.random.choice(SCORERS))
        self.fleet.schedule.set_override(target, paused=True)
        self.schedule_later(4, lambda: self._reset(target))

    def change_interval(self) -> None:
        target = keys.pair(self.random.choice(("*", *CLUSTERS)), self.random.choice(SCORERS))
        self.fleet.schedule.set_override(target, interval=self.random.randint(1, 3))
        self.schedule_later(8, lambda: self._reset(target))

    def _reset(self, target: str) -> None:
        self.fleet.schedule.reset(target)

    def kill_agent(self) -> None:
        self._kill(f"agent {self.random.choice(CLUSTERS)}", 6)

    def kill_hub(self) -> None:
        self._kill("whole", 4)

    def _kill(self, name: str, longest: float) -> None:
        if name in self.fleet.processes:
            self.fleet.kill(name)
            self.schedule_later(longest, lambda: self.fleet.run(name))

    def freeze_agent(self) -> None:
        process = self.fleet.processes.get(f"agent {self.random.choice(CLUSTERS)}")
        if process is not None:
            process.signal(signal.SIGSTOP)
            self.schedule_later(4, lambda: process.signal(signal.SIGCONT))

    def kill_redis(self) -> None:
        self.fleet.redis_server.kill()
        pass_time(self.random.uniform(0, 3))
        self.fleet.redis_server.restart()

    def push_malformed_result(self) -> None:
        """Push a malformed result with a valid credential."""
        cluster = self.random.choice(CLUSTERS)
        garbage = self.random.choice(("", "{}", "[1]" * 100, "no json" * 50, '{"body": 1}'))
        self.fleet.redis.set(keys.mail_slot(cluster, self.random.randrange(keys.MAIL_SLOTS)), garbage)
        self.fleet.redis.set(keys.mail_flag(cluster), 1)


def test_books_balance_after_a_mix_of_faults(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    mix = Mix(fleet, SEED)
    mix.run(SECONDS)
    mix.add_missing_outcomes()
    _restart_hub(fleet, "controller,results,web")
    started = time.monotonic()
    fleet.until(
        lambda: not fleet.open_runs() and not count_waiting_results(fleet.redis, CLUSTERS),
        "all runs to end",
        60,
    )
    settled = time.monotonic() - started

    totals: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for cluster, scorer in PAIRS:
        state = fleet.state(scorer, cluster)
        books = fleet.books(scorer, cluster)
        assert books["scheduled"] == sum(books[outcome] for outcome in OUTCOMES), (cluster, scorer, books)
        assert books["error"] == sum(state.read_error_counts().values())
        fleet.check_books(scorer, cluster)
        totals += Counter(books)
        reasons += Counter({f"skipped {reason}": number for reason, number in state.read_skip_counts().items()})
        reasons += Counter(
            {f"error {stage} {reason}": number for (stage, reason), number in state.read_error_counts().items()}
        )

    # The books equal the ticks that beat sent or skipped plus the requested runs, so no tick is missing.
    stats = {str(name): int(float(number)) for name, number in fleet.redis.hgetall(keys.BEAT_STATS).items()}
    ticks = stats["ticks"] + sum(number for name, number in stats.items() if name.startswith("skipped:"))
    assert totals["scheduled"] == ticks + mix.rescored.total()

    check_metrics(fleet)
    check_history(fleet)
    assert all(totals[outcome] for outcome in OUTCOMES), totals

    # Everything else is unchanged.
    _restart_hub(fleet, "all")
    for cluster, scorer in PAIRS:
        fleet.wait_success(scorer, cluster)
    for scorer in SCORERS:
        fleet.until(lambda scorer=scorer: fleet.condition(scorer, "Scoring")[0] == "True", f"{scorer} to be Scoring")  # type: ignore[misc]
    for cluster in CLUSTERS:
        fleet.until(lambda cluster=cluster: fleet.spooled(cluster) == [])  # type: ignore[misc]

    with capsys.disabled():
        print(f"\nsoak of {SECONDS:g} s, seed {SEED}: {dict(mix.done)}")
        print(f"books: {dict(totals)}; rescored {mix.rescored.total()}; settled in {settled:.1f} s")
        print("reasons: " + ", ".join(f"{reason} {number}" for reason, number in sorted(reasons.items())))


def _restart_hub(fleet: Fleet, target: str) -> None:
    """Start the process of the hub again with these services."""
    fleet.stop("whole")
    fleet.settings["whole"]["target"] = target
    fleet.run("whole")
    fleet.wait_ready("whole")


def check_metrics(fleet: Fleet) -> None:
    """The exporter's counters are the books."""
    samples = list(fleet.samples(fleet.web))
    for cluster, scorer in PAIRS:
        labels = {"ds_cluster": cluster, "ds_score_name": f"{scorer}-score"}
        counts = {
            metric.labels.get("outcome", "scheduled"): int(metric.value)
            for metric in samples
            if metric.name in ("dynamic_scoring_scheduled_total", "dynamic_scoring_cycles_total")
            and labels.items() <= metric.labels.items()
        }
        expected = fleet.books(scorer, cluster)
        assert expected.pop("open") == 0
        assert counts == expected


def check_history(fleet: Fleet) -> None:
    """`dsf history` agrees, and has no run twice."""
    for cluster, scorer in PAIRS:
        report = fleet.data("history", scorer, "--cluster", cluster)
        books = {outcome: report["books"][outcome] for outcome in ("scheduled", *OUTCOMES, "open")}
        assert books == fleet.books(scorer, cluster)
        runs = [cycle["runId"] for cycle in report["cycles"]]
        assert len(runs) == len(set(runs))
