"""A hub's Redis with clusters, scorers and a clock that the test moves, and messages as agents send them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import redis

from dsf import keys, messages
from dsf.api.naming import sanitize_resource_name
from dsf.api.score import make_score_body
from dsf.backends.protocol import Kind, ObjectKey
from dsf.backends.scorestate import ScoreState, make_adopted_status, read_score_state
from dsf.results.ingest import Ingest
from dsf.scores.writer import ScoreWriter
from dsf.settings import Settings
from dsf.store.client import run_atomically
from dsf.store.entries import Entry
from dsf.store.history import HistoryEntry
from dsf.store.pairs import Pairs, PairState
from dsf.store.registry import ClusterRecord, Registry, ScorerRecord
from dsf.store.runs import Runs
from dsf.store.schedule import ScheduleStore
from dsf.store.writes import ScoreWriterStore

SECRET = "5e" * 32
#: Later than any real clock, by which some due times are.
START = 4_102_444_800.0


def handle(ingest: Ingest, frame: bytes | str) -> str:
    """Ingest a frame and return its outcome."""
    (response,) = ingest.ingest_frames([frame.encode() if isinstance(frame, str) else frame])
    if isinstance(response, redis.ResponseError):
        raise response
    return response


class MemoryBackend:
    """Keeps objects in a dict; fails with `error` while that is set."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.written_at: dict[tuple[str, str], float] = {}
        self.clock = clock
        self.log: list[tuple[str, str, str]] = []
        self.error: Exception | None = None
        self.lock = threading.Lock()

    def list_keys(self, kind: Kind) -> list[ObjectKey]:
        return [ObjectKey(kind, *key) for key in self.objects]

    def find_score(self, namespace: str, name: str) -> ScoreState | None:
        key = namespace, name
        score_object = self.objects.get(key)
        return (
            None if score_object is None else read_score_state(score_object, written_at=self.written_at.get(key, 0.0))
        )

    def apply_score(self, manifest: dict[str, Any], status: dict[str, Any]) -> ScoreState:
        if self.error is not None:
            raise self.error.with_traceback(None)
        key = (manifest["metadata"]["namespace"], manifest["metadata"]["name"])
        with self.lock:
            self.objects[key] = {**manifest, "status": status}
            self.written_at[key] = self.clock()
            self.log.append(("apply", *key))
            return read_score_state(self.objects[key], written_at=self.clock())

    def adopt_scores(self, claim: Callable[[str, str, float], tuple[dict[str, Any], datetime] | None]) -> int:
        """Take over all objects without a validUntil, as if upstream's agent had written them."""
        if self.error is not None:
            raise self.error.with_traceback(None)
        adopted = 0
        for key, score_object in self.objects.items():
            if not score_object["status"].get("validUntil") and (claimed := claim(*key, 0.0)) is not None:
                manifest, valid_until = claimed
                self.objects[key] = {**manifest, "status": make_adopted_status(score_object, valid_until)}
                self.written_at[key] = self.clock()
                adopted += 1
        return adopted

    def delete_score(self, namespace: str, name: str) -> None:
        if self.error is not None:
            raise self.error.with_traceback(None)
        with self.lock:
            self.objects.pop((namespace, name), None)
            self.log.append(("delete", namespace, name))

    def scores(self, cluster: str, name: str) -> dict[str, int] | None:
        """Item name -> value of one object, or None."""
        score_object = self.objects.get((cluster, name))
        return (
            None if score_object is None else {item["name"]: item["value"] for item in score_object["status"]["scores"]}
        )


class BedOwners:
    """Accepts the pairs of the schedule and further ones; a score name belongs to the registry's scorer."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._registry = Registry(client)
        self.wanted: set[tuple[str, str]] = set()
        self.departed: set[str] = set()

    def needs_score(self, cluster: str, label: str) -> bool:
        if cluster in self.departed:
            return False
        return (cluster, label) in self.wanted or self._client.hexists(keys.ENTRIES, keys.pair(cluster, label))

    @property
    def version(self) -> object:
        return self._registry

    def plan_adoption(self, cluster: str, name: str, created: float) -> tuple[dict[str, Any], int] | None:
        del created
        scorer = self.find_scorer(cluster, name)
        if scorer is None or not self.needs_score(cluster, scorer):
            return None
        record = self._registry.read_scorer(scorer)
        return make_score_body(cluster, scorer, record.score_name, owner_uid=f"uid-{cluster}"), record.validity

    def find_scorer(self, cluster: str, name: str) -> str | None:
        del cluster
        scorers = self._registry.read_scorers().values()
        return next((scorer.name for scorer in scorers if sanitize_resource_name(scorer.score_name) == name), None)


class ResultsHarness:
    """One hub. Times are unix seconds on its own clock, which stands still unless a test moves it."""

    def __init__(self, client: redis.Redis, settings: Settings) -> None:
        self.client = client
        self.settings = settings
        self.now = START
        self.registry = Registry(client)
        self.pairs = Pairs(client)
        self.runs = Runs(client)
        self.writes = ScoreWriterStore(client)
        self.schedule = ScheduleStore(client)
        self.backend = MemoryBackend(lambda: self.now)
        self.owners = BedOwners(client)
        self.ingest = Ingest(client, settings, clock=lambda: self.now)
        # Scorers whose status writers reported as changed.
        self.changed_statuses: set[str] = set()

    def writer(self) -> ScoreWriter:
        """Return a new writer, as another leader would have one."""
        return ScoreWriter(
            self.client,
            self.settings,
            self.backend,
            lambda: self.owners,
            on_status=self.changed_statuses.update,
            clock=lambda: self.now,
        )

    def add(self, cluster: str = "c1", scorer: str = "s1", **values: Any) -> ScorerRecord:
        """Register a pair."""
        record = ScorerRecord(
            **{
                "name": scorer,
                "score_name": f"score of {scorer}",
                "interval": 30,
                "validity": 300,
                "dimension_formats": ("${node}",),
                **values,
            }
        )
        self.registry.put_cluster(ClusterRecord(name=cluster, uid=f"uid-{cluster}"))
        self.registry.put_scorer(record)
        entry = Entry(cluster=cluster, scorer=scorer, score_name=record.score_name, interval=record.interval)
        self.client.hset(keys.ENTRIES, entry.pair, entry.model_dump_json())
        return record

    def open(self, cluster: str = "c1", scorer: str = "s1", *, deadline: float = 60.0) -> str:
        """Open a run as beat does when it sends a tick."""
        run = messages.make_run_id(self.now)
        run_atomically(
            self.client,
            ("HINCRBY", keys.pair_key(cluster, scorer), "n:scheduled", 1),
            ("ZADD", keys.OPEN_RUNS, self.now + deadline, keys.run_member(cluster, scorer, run)),
        )
        return run

    def frame(self, run: str, cluster: str = "c1", scorer: str = "s1", *, key_id: int = 1, **values: Any) -> bytes:
        """Return a signed result; by default a good one with the items a=1 and b=2."""
        outcome = values.setdefault("outcome", "ok")
        if outcome in ("ok", "partial"):
            values.setdefault("results", [({"node": "a"}, 1.0), ({"node": "b"}, 2.0)])
        if outcome == "error":
            values.setdefault("stage", "fetch")
            values.setdefault("reason", "timeout")
        result = messages.Result(cluster=cluster, scorer=scorer, run=run, **{"at": self.now, **values})
        return messages.sign(result, messages.derive_key(bytes.fromhex(SECRET), cluster, key_id))

    def signed(self, payload: bytes, cluster: str = "c1") -> bytes:
        """Return a frame with any payload, well signed."""
        return messages.make_frame(payload, messages.derive_key(bytes.fromhex(SECRET), cluster, 1), cluster)

    def backlog(self, number: int) -> list[Any]:
        """Good results of so many runs of one pair, a millisecond after each other and all within the last second."""
        self.now = time.time() - 1
        frames: list[Any] = []
        for _ in range(number):
            self.now += 0.001
            # On a busy machine it takes minutes until the last one is in the books.
            frames.append(self.frame(self.open(deadline=3600.0)))
        return frames

    def send(self, run: str, cluster: str = "c1", scorer: str = "s1", **values: Any) -> str:
        """Ingest a result of the agent's."""
        return handle(self.ingest, self.frame(run, cluster, scorer, **values))

    def cycle(self, cluster: str = "c1", scorer: str = "s1", **values: Any) -> str:
        """Return a whole cycle: the tick, a second, the result."""
        run = self.open(cluster, scorer)
        self.now += 1
        return self.send(run, cluster, scorer, **values)

    def sweep(self) -> list[str]:
        """Declare runs lost that are due."""
        lost, _ = self.runs.sweep(now=self.now, lost_after=self.settings.lost_after)
        return lost

    def write(self, writer: ScoreWriter | None = None) -> list[tuple[str, str, str]]:
        """Let a writer, by default a new one, write everything that is due; return the requests to the backend."""
        writer, before = writer or self.writer(), len(self.backend.log)
        deadline = time.monotonic() + 20
        while writer.step() == 0.0:
            assert time.monotonic() < deadline
        return self.backend.log[before:]

    def state(self, cluster: str = "c1", scorer: str = "s1") -> PairState:
        return self.pairs.read_state(cluster, scorer)

    def history(self, cluster: str = "c1", scorer: str = "s1") -> list[HistoryEntry]:
        return self.pairs.read_history(cluster, scorer)

    def rejected(self) -> dict[str, int]:
        return {str(reason): int(number) for reason, number in self.client.hgetall(keys.REJECTED).items()}

    def news(self) -> set[str]:
        """Return the scorers that the hub was notified of, and clear them; the wake list never grows."""
        assert self.client.llen(keys.HUB_WAKE) <= 1
        changed = {str(scorer) for scorer in self.client.smembers(keys.HUB_CHANGED)}
        self.client.delete(keys.HUB_CHANGED, keys.HUB_WAKE)
        return changed
