"""What the pages show, read from `dsf.fleet` and the stores below it. Reads only."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import redis

from dsf import keys
from dsf.fleet.reader import FleetReader
from dsf.fleet.schedule import entry_view
from dsf.fleet.views import EntryView, HistoryList
from dsf.messages import is_run_id, run_time
from dsf.store.agentkeys import AgentKeys
from dsf.store.agents import AgentRecord, Agents
from dsf.store.entries import effective
from dsf.store.pairs import Failure, Pairs, PairState, Score
from dsf.store.registry import ClusterRecord, Registry, ScorerRecord
from dsf.store.schedule import Entry, Override, ScheduleStore, scorer_target
from dsf.web.states import RANK, STATES, State, state_of

Pair = tuple[str, str]
#: Seconds for which one reading of the fleet is shown to all, and how many times its own cost at least: looking never
#: takes more than a tenth of a core.
_FRESH = 1.0
_REST = 10.0


@dataclass(frozen=True)
class Why:
    """Why a pair has no fresh score: its newest failure, or that of what keeps its ticks. `at` is unix seconds."""

    stage: str
    reason: str
    message: str
    at: float
    run: str = ""


@dataclass
class Group:
    """Pairs of one scorer that have no fresh score for one reason; text and time are the newest ones."""

    scorer: str
    state: State
    why: Why
    newest: str
    clusters: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ScorerCounts:
    """A scorer, and its pairs by state."""

    record: ScorerRecord
    counts: Mapping[str, int]

    @property
    def total(self) -> int:
        """Clusters on which it runs."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class Fleet:
    """All pairs at one moment (unix seconds). `states` has only those that are not ok."""

    at: float
    pairs: tuple[Pair, ...]
    states: Mapping[Pair, State]
    whys: Mapping[Pair, Why]
    scorers: tuple[ScorerCounts, ...]
    clusters: tuple[str, ...]
    groups: tuple[Group, ...]
    paused: Mapping[Pair, str]

    def state(self, pair: Pair) -> State:
        """The state of a pair of the schedule."""
        return self.states.get(pair, STATES["ok"])

    @property
    def counts(self) -> Mapping[str, int]:
        """Pairs by state."""
        total: Counter[str] = Counter()
        for one in self.scorers:
            total.update(one.counts)
        return total

    def worst_first(self) -> list[Pair]:
        """All pairs, what needs a person first."""
        return sorted(self.pairs, key=lambda pair: (RANK[self.state(pair).name], pair))


@dataclass(frozen=True)
class Row:
    """One pair with everything that a line of a table says. Times are unix seconds."""

    cluster: str
    scorer: str
    state: State
    why: Why | None
    score: Score | None
    expired: bool
    entry: EntryView | None
    data: PairState

    @property
    def values(self) -> list[int]:
        """Values of the items, highest first; none when the score may not be used."""
        return [] if self.score is None or self.expired else sorted((v for _, v in self.score.items), reverse=True)


@dataclass(frozen=True)
class PairDetail:
    """One pair, its past cycles and its books."""

    row: Row
    history: HistoryList
    record: ScorerRecord
    agent: AgentRecord | None


@dataclass(frozen=True)
class ClusterDetail:
    """One cluster. Lengths are messages."""

    record: ClusterRecord
    agent: AgentRecord | None
    rows: list[Row]
    queue: int
    not_here: list[ScorerRecord]
    last_heard: float | None
    key_used: int | None


class Reading:
    """Reads for the pages. Thread-safe.

    Methods raise redis.RedisError when Redis cannot be read, and UnknownScorerError or UnknownClusterError.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._registry = Registry(client)
        self._pairs = Pairs(client)
        self._schedule = ScheduleStore(client)
        self._agents = Agents(client)
        self._reader = FleetReader(client)
        self._lock = threading.Lock()
        self._fleet: Fleet | None = None
        self._until = 0.0

    def ping(self) -> None:
        """Whether Redis answers."""
        self._redis.ping()

    def fleet(self) -> Fleet:
        """All pairs, as of at most some seconds ago."""
        with self._lock:
            if self._fleet is None or time.monotonic() >= self._until:
                began = time.thread_time()
                self._fleet = None
                self._fleet = self._read_fleet()
                self._until = time.monotonic() + max(_FRESH, _REST * (time.thread_time() - began))
            return self._fleet

    def forget(self) -> None:
        """Read anew at the next question: somebody has just changed something."""
        self._until = 0.0

    def rows(self, pairs: Iterable[Pair], states: Mapping[Pair, PairState] | None = None) -> list[Row]:
        """Lines of tables for a few pairs, in their order."""
        pairs = list(pairs)
        now = time.time()
        read = states or {(one.cluster, one.scorer): one for one in self._pairs.states(pairs)}
        names = [keys.pair(*pair) for pair in pairs]
        entries = {(one.cluster, one.scorer): one for one in self._schedule.entries(names)}
        overrides, due = self._schedule.overrides(), self._schedule.due_times(names)
        records = self._registry.scorers()
        found = []
        for pair in pairs:
            entry = entries.get(pair)
            view = entry_view(entry, overrides, due.get(keys.pair(*pair)), now) if entry is not None else None
            paused = bool(view and view.paused and entry is not None and entry.runnable)
            state = state_of(read[pair], now, paused=paused)
            score = read[pair].score
            found.append(
                Row(
                    cluster=pair[0],
                    scorer=pair[1],
                    state=state,
                    why=_why(state, read[pair], records.get(pair[1]), _paused_by(view) if view and paused else ""),
                    score=score,
                    expired=score is not None and score.valid_until <= now,
                    entry=view,
                    data=read[pair],
                )
            )
        return found

    def record(self, scorer: str) -> ScorerRecord:
        """What is known of a scorer."""
        return self._registry.scorer(scorer)

    def overrides(self, scorer: str) -> dict[str, Override]:
        """People's changes to a scorer, by target."""
        return {name: one for name, one in self._schedule.overrides().items() if keys.split_pair(name)[1] == scorer}

    def pair(self, cluster: str, scorer: str) -> PairDetail:
        """One pair."""
        record = self._registry.scorer(scorer)
        self._registry.cluster(cluster)
        [row] = self.rows([(cluster, scorer)])
        agent = self._agents.all().get(cluster)
        return PairDetail(row, self._reader.history(cluster, scorer), record, agent)

    def cluster(self, name: str) -> ClusterDetail:
        """One cluster and its pairs."""
        record = self._registry.cluster(name)
        fleet = self.fleet()
        rows = self.rows(pair for pair in fleet.pairs if pair[0] == name)
        here = {row.scorer for row in rows}
        heard = [run_time(row.data.last_run) for row in rows if is_run_id(row.data.last_run)]
        return ClusterDetail(
            record=record,
            agent=self._agents.all().get(name),
            rows=sorted(rows, key=lambda row: (RANK[row.state.name], row.scorer)),
            queue=int(self._redis.llen(keys.spoke_queue(name))),
            not_here=[one.record for one in fleet.scorers if one.record.name not in here],
            last_heard=max(heard, default=None),
            key_used=AgentKeys(self._redis).used().get(name),
        )

    def runs(self, row: Row) -> list[str]:
        """The run ids that are known of a pair: past cycles and that of its score."""
        past = [cycle.run for cycle in self._pairs.history(row.cluster, row.scorer)]
        return [*past, row.data.last_run, *([row.score.run] if row.score else [])]

    def _read_fleet(self) -> Fleet:
        now = time.time()
        pairs = tuple(self._pairs.names())
        records = self._registry.scorers()
        overrides = self._schedule.overrides()
        states: dict[Pair, State] = {}
        whys: dict[Pair, Why] = {}
        groups: dict[tuple[str, str, str, str], Group] = {}
        paused = {pair: by for pair in pairs if (by := _is_paused(pair, records.get(pair[1]), overrides, now))}
        unsettled = {(one.cluster, one.scorer): one for one in self._pairs.unsettled(pairs, now)}
        for pair in sorted({*unsettled, *paused}):
            data = unsettled.get(pair) or PairState(*pair, {})
            state = state_of(data, now, paused=pair in paused)
            if state.name == "ok":
                continue
            states[pair] = state
            why = whys[pair] = _why(state, data, records.get(pair[1]), paused.get(pair, "")) or _NO_REASON
            key = (pair[1], state.name, why.stage, why.reason)
            group = groups.setdefault(key, Group(pair[1], state, why, pair[0]))
            if why.at > group.why.at:
                group.why, group.newest = why, pair[0]
            group.clusters.append(pair[0])
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for pair in pairs:
            counts[pair[1]][states[pair].name if pair in states else "ok"] += 1
        return Fleet(
            at=now,
            pairs=pairs,
            states=states,
            whys=whys,
            scorers=tuple(ScorerCounts(record, counts[name]) for name, record in sorted(records.items())),
            clusters=tuple(sorted(self._registry.clusters())),
            groups=tuple(sorted(groups.values(), key=_urgency)),
            paused=paused,
        )


_NO_REASON = Why("", "", "", 0.0)


def _urgency(group: Group) -> tuple[int, int, str]:
    return (RANK[group.state.name], -len(group.clusters), group.scorer)


def _why(state: State, data: PairState, record: ScorerRecord | None, paused: str) -> Why | None:
    """Why a pair is not ok; None when it is."""
    if state.name == "ok":
        return None
    if paused:
        return Why("", "paused", paused, 0.0)
    failure: Failure | None = data.trouble
    if failure is not None:
        return Why(failure.stage, failure.reason, failure.message, failure.at, failure.run)
    skips = data.skips
    if skips is not None:
        text = skips.why(record.rate_limit, record.problem) if record else skips.why(None)
        return Why("", skips.reason, text, skips.since)
    if record is not None and record.problem:
        reason, _, text = record.problem.partition(": ")
        return Why("", reason, text or reason, 0.0)
    return Why("", state.name.replace("never", "waiting"), state.help, 0.0)


def _is_paused(pair: Pair, record: ScorerRecord | None, overrides: Mapping[str, Override], now: float) -> str:
    """Who paused a pair and why, as a sentence; empty when it is not paused."""
    targets = (scorer_target(pair[1]), keys.pair(*pair))
    suspended = record is not None and record.suspended
    if not suspended and not any(target in overrides for target in targets):
        return ""
    entry = Entry(cluster=pair[0], scorer=pair[1], score_name="-", interval=1, suspended=suspended)
    runs = effective(entry, overrides, now)
    if not runs.paused:
        return ""
    return _paused_by(entry_view(entry, overrides, None, now))


def _paused_by(view: EntryView) -> str:
    until = f" until {view.paused_until:%Y-%m-%d %H:%M} UTC" if view.paused_until else ""
    by = next((one for one in view.overrides if one.target == view.paused_source), None)
    if by is None:
        return f"suspended by its DynamicScorer{until}"
    return f"paused by {by.by or 'unknown'}{until}" + (f": {by.note}" if by.note else "")
