"""Report of a running fleet: one line per pair, with the reasons of missing scores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import redis

from dsf import keys
from dsf.api.cluster import ManagedCluster
from dsf.api.manifest import ParsedDocument, parse_documents
from dsf.api.scorer import DynamicScorer
from dsf.api.scoringconfig import DynamicScoringConfig
from dsf.fleet.objectproblems import list_unmet_conditions, read_folder_problems
from dsf.fleet.queries import FleetQueries
from dsf.fleet.views import ScoreView
from dsf.hub.plan import MaskIndex
from dsf.store.notices import Notices
from dsf.store.registry import Registry


@dataclass(frozen=True)
class PairLine:
    """The state of a pair. Times are unix seconds, ages seconds."""

    cluster: str
    scorer: str
    #: Number of the score's items.
    items: int
    #: Lowest value of the items; None without items.
    lowest: int | None
    #: Highest value of the items; None without items.
    highest: int | None
    #: Age of the score; None without a score.
    age: float | None
    #: Time of the next cycle; None if no cycle is scheduled.
    next_run: float | None
    #: Number of consecutive failed cycles.
    failing: int
    #: Error of the newest failed cycle, or the reason why the scorer does not run; "" without an error.
    failure: str
    #: Time of the score's measurement; None without a score.
    measured: float | None


class DemoReport:
    """Reads the state of all pairs from Redis and from the folder of manifests."""

    def __init__(self, client: redis.Redis, manifests: Path, out_dir: Path) -> None:
        self._redis = client
        self._fleet = FleetQueries(client)
        self._manifests = manifests
        self._out_dir = out_dir
        #: File -> its modification time (ns) and size, and its documents.
        self._parsed_files: dict[Path, tuple[tuple[int, int], list[ParsedDocument]]] = {}

    def read_lines(self) -> list[PairLine]:
        """Return a line for every pair of the schedule, sorted by cluster and scorer as in `FleetQueries.scores`.

        Raises redis.RedisError if Redis cannot be read.
        """
        due_entries: list[tuple[str, float]] = self._redis.zrange(keys.DUE, 0, -1, withscores=True)  # type: ignore[assignment]
        due_times = dict(due_entries)
        problems_by_scorer = {name: record.problem for name, record in Registry(self._redis).read_scorers().items()}
        return [
            _make_pair_line(
                score,
                due_times.get(keys.pair(score.cluster, score.scorer)),
                problems_by_scorer.get(score.scorer, ""),
            )
            for score in self._fleet.scores().scores
        ]

    def explain_missing_scores(self, start: float) -> dict[str, str]:
        """Return pair -> reason for each pair without a score with items that was measured since `start`.

        `start` is in unix seconds. Raises redis.RedisError if Redis cannot be read, and OSError if a manifest cannot be
        read.
        """
        lines = {keys.pair(line.cluster, line.scorer): line for line in self.read_lines()}
        reasons = {}
        for pair in sorted(self._list_wanted_pairs() | set(lines)):
            line = lines.get(pair)
            if line is None:
                reasons[pair] = "is not in the schedule; " + self._explain_unscheduled(keys.split_pair(pair)[1])
            elif line.failing:
                reasons[pair] = f"fails: {line.failure}"
            elif line.failure:
                reasons[pair] = line.failure
            elif line.measured is None or line.measured < start:
                reasons[pair] = "no score has been measured since the start"
            elif not line.items:
                reasons[pair] = "the scoring API returned no results"
        return reasons

    def read_problems(self) -> list[str]:
        """Return the hub's errors about the manifests; none if the hub's file of errors cannot be read."""
        return [
            f"{problem.location}: {problem.message}" if problem.location else problem.message
            for problem in read_folder_problems(self._out_dir)
        ]

    def _list_wanted_pairs(self) -> set[str]:
        """Return the pairs of served clusters and scorers in the manifests that are neither suspended nor masked."""
        clusters: list[str] = []
        scorers: list[str] = []
        masks: set[tuple[str, str]] = set()
        for document in self._read_documents():
            if isinstance(document.object, ManagedCluster) and document.object.is_served:
                clusters.append(document.object.metadata.name)
            elif isinstance(document.object, DynamicScorer) and not document.object.spec.execution.suspend:
                scorers.append(document.object.metadata.name)
            elif isinstance(document.object, DynamicScoringConfig):
                masks |= {(mask.cluster_name or "", mask.score_name) for mask in document.object.spec.all_masks}
        mask_index = MaskIndex(frozenset(masks))
        score_names = {name: record.score_name for name, record in Registry(self._redis).read_scorers().items()}
        return {
            keys.pair(cluster, scorer)
            for cluster in clusters
            for scorer in scorers
            if not mask_index.hides(cluster, score_names.get(scorer, ""))
        }

    def _read_documents(self) -> list[ParsedDocument]:
        """Return the documents of all manifests. Unchanged files are not parsed again."""
        documents: list[ParsedDocument] = []
        for file in sorted(self._manifests.rglob("*.y*ml")):
            if not file.is_relative_to(self._out_dir):
                documents += self._parse_file(file)
        return documents

    def _parse_file(self, file: Path) -> list[ParsedDocument]:
        """Return the valid documents of a manifest, from the cache if the file has not changed."""
        file_status = file.stat()
        modification = file_status.st_mtime_ns, file_status.st_size
        if file not in self._parsed_files or self._parsed_files[file][0] != modification:
            parsed = parse_documents(file.read_text(encoding="utf-8", errors="replace"), file.name)
            documents = [document for document in parsed if isinstance(document, ParsedDocument)]
            self._parsed_files[file] = modification, documents
        return self._parsed_files[file][1]

    def _explain_unscheduled(self, scorer: str) -> str:
        notice = Notices(self._redis).read_scorer(scorer)
        unmet_conditions = list(list_unmet_conditions(scorer, notice.conditions)) if notice is not None else []
        return (
            "; ".join(f"{condition.type}: {condition.reason}: {condition.message}" for condition in unmet_conditions)
            or "the hub has reported no reason"
        )


def _make_pair_line(score: ScoreView, due_at: float | None, problem: str) -> PairLine:
    """Return the line of a pair. `problem` is the reason why its scorer does not run, or ""."""
    values = [item.value for item in score.items]
    failure = score.failure
    return PairLine(
        cluster=score.cluster,
        scorer=score.scorer,
        items=len(values),
        lowest=min(values, default=None),
        highest=max(values, default=None),
        age=score.age_seconds,
        # The schedule may still have a time for a pair that cannot run.
        next_run=None if problem else due_at,
        failing=score.failing,
        failure=f"{failure.stage or 'cycle'} {failure.reason}: {failure.message}" if failure else problem,
        measured=score.at.timestamp() if score.at else None,
    )
