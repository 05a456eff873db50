"""The common part of `dsf backtest` and `dsf compare`: finds scorers, runs their backtests, and reads recordings."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
import typer

from dsf import http
from dsf.agent.secrets import FileSecrets, Release
from dsf.api.scorerule import HoldRule, build_rule_items
from dsf.api.summary import ScorerSummary
from dsf.auth.secrets import SecretSource
from dsf.backtest.comparison import Common, ComparisonView, PlacementDifference, find_replay
from dsf.backtest.errors import BacktestError
from dsf.backtest.inputs import find_inputs
from dsf.backtest.recording import Question, QuestionLine, Record, Recording, dump_line
from dsf.backtest.run import check_sources, list_moments, run
from dsf.backtest.runstore import KeptRun, make_run_id, store_run
from dsf.backtest.scorers import ManifestFile, read_summary_from_hub, redirect_servers
from dsf.backtest.summary import BacktestView, summarize_records
from dsf.cli.delivery import open_delivery
from dsf.cli.group import EXIT_USAGE, fail
from dsf.cli.localuser import get_local_user
from dsf.cli.session import add_kubeconfig, load_agent_settings, load_command_settings, open_session
from dsf.errors import DsfError, UnknownScorerError
from dsf.extras import describe_missing_extra
from dsf.fleet.queries import FleetQueries
from dsf.fleet.views import ScoreView
from dsf.http import transport
from dsf.process import hubclock
from dsf.settings import Settings
from dsf.store.registry import Registry, ScorerRecord


@dataclass(frozen=True)
class Subject:
    """A scorer on a cluster, with the settings and Secrets of its requests."""

    cluster: str
    summary: ScorerSummary
    settings: Settings
    secrets: SecretSource
    #: The scorers whose scores a composite combines; see `find_inputs`.
    inputs: tuple[ScorerSummary, ...] = ()

    def run(
        self,
        recording: Recording,
        moments: range,
        every: int,
        rate: float,
        on_line: Callable[[QuestionLine | Record], None] | None = None,
    ) -> None:
        """Run the moments that the recording lacks; `on_line` gets all lines, also those that the recording has.

        `every` is the seconds between two moments, `rate` the maximum requests per second. Raises BacktestError, and
        KeyboardInterrupt; the recording then has the moments so far.
        """
        on_line = on_line or (lambda _: None)
        # Close all connections, which are kept by host name: a name may lead to another server on each cluster.
        http.use(self.settings)
        transport.close()
        question = Question.of(self.cluster, self.summary, every, self.inputs)
        recording.begin_question(question)
        on_line(QuestionLine(question=question))
        missing_moments = recording.list_missing_moments(self.cluster, moments)
        for record in recording.iterate_records(self.cluster, moments[0], moments[-1]):
            if record.outcome != "error":
                on_line(record)
        records = run(
            self.cluster, self.summary, self.settings, self.secrets, missing_moments, inputs=self.inputs, rate=rate
        )
        for record in _with_progress(records, f"{self.summary.name} on {self.cluster}", len(missing_moments)):
            recording.add_record(record)
            on_line(record)


def read_subject(
    stack: ExitStack,
    scorer: str | None,
    cluster: str,
    manifest: Path | None,
    scorer_url: str = "",
    source_url: str = "",
) -> Subject:
    """Return the scorer in `manifest`, or without a manifest as it was delivered to the cluster, or as the hub has it.

    Raises DsfError with what is missing and where, and BacktestError for a source that has no past.
    """
    settings = load_agent_settings(cluster)
    http.use(settings)
    if settings.agent_kube:
        # Run at low priority, because the cycles of the agent in this pod come first.
        os.nice(10)
    delivery = open_delivery(stack, cluster, settings)
    file = ManifestFile(manifest) if manifest is not None else None

    def find_registered(name: str, namespace: str | None = None) -> ScorerSummary:
        if delivery is None:
            return _read_from_hub(settings, name, cluster, scorer_url, namespace)
        return delivery.get_summary(name, cluster, "see `dsf status`, or test a manifest with -f")

    summary = file.make_summary(scorer, cluster, scorer_url) if file is not None else find_registered(scorer or "")
    # Delivered summaries leave out the hub's own namespace.
    namespace = summary.namespace or settings.namespace

    def find_input(name: str) -> ScorerSummary:
        input_summary = file.find_input(name, namespace, cluster, scorer_url) if file is not None else None
        if input_summary is None:
            try:
                input_summary = find_registered(name, namespace)
            except DsfError as error:
                search_text = f"neither {manifest} nor its folder has it; " if file is not None else ""
                raise BacktestError(f"{search_text}{error}") from None
        if (input_summary.namespace or settings.namespace) != namespace:
            raise BacktestError(f"it is in namespace {input_summary.namespace!r}, the composite in {namespace!r}")
        return input_summary.model_copy(update={"namespace": summary.namespace})

    check_sources(summary)
    inputs = find_inputs(summary, find_input)
    # With --scorer-url, redirect the scorers with a scoring API. Without any, `redirect_servers` refuses the option.
    summaries_with_api = [item for item in (*inputs, summary) if item.expression is None] or [summary]
    redirected_summaries = [
        redirect_servers(item, scorer_url if item in summaries_with_api else "", source_url)
        for item in (*inputs, summary)
    ]
    secrets = delivery.secrets if delivery else FileSecrets(settings.agent_secrets_dir, Release(settings))
    return Subject(cluster, redirected_summaries[-1], settings, secrets, tuple(redirected_summaries[:-1]))


def _read_from_hub(
    settings: Settings, scorer: str, cluster: str, scorer_url: str, namespace: str | None = None
) -> ScorerSummary:
    from dsf.kube.session import Session

    kubeconfig = add_kubeconfig(settings).kubeconfig
    if kubeconfig is None and "KUBERNETES_SERVICE_HOST" not in os.environ:
        raise UnknownScorerError(
            f"nothing says what scorer {scorer!r} is: no demo runs here, and there is neither a kubeconfig of the hub "
            "nor DSF_AGENT_CONFIG; -f tests a manifest"
        )
    with closing(Session.load(kubeconfig)) as hub:
        return read_summary_from_hub(hub, scorer, cluster, scorer_url, namespace)


def run_all(
    tests: Iterable[tuple[Subject, Recording]],
    times: range,
    every: int,
    rate: float,
    on_line: Callable[[QuestionLine | Record], None] | None = None,
) -> bool:
    """Run each backtest into its recording. Return True if Ctrl-C interrupted one; the command then continues."""
    try:
        for subject, recording in tests:
            subject.run(recording, times, every, rate, on_line)
    except KeyboardInterrupt:
        typer.echo("dsf: interrupted; what was computed is kept", err=True)
        return True
    return False


def print_line(line: QuestionLine | Record) -> None:
    """Print a line of a recording as JSON."""
    typer.echo(dump_line(line))


def make_views(
    recording: Recording, tested: list[Subject], times: range, noise: int, hold: HoldRule | None
) -> list[BacktestView]:
    """Return the summary of each cluster that has a question in the recording."""
    questions = [recording.questions[subject.cluster] for subject in tested if subject.cluster in recording.questions]
    return [
        summarize_records(
            question, times, recording.iterate_records(question.cluster, times[0]), noise=noise, hold=hold
        )
        for question in questions
    ]


def _find_manifest(name: str) -> Path | None:
    """Return the path if a side is a manifest; None for a recording or a scorer's name.

    A scorer's name may look like a file name, but has no slash.
    """
    path = Path(name)
    is_manifest = path.suffix in (".yaml", ".yml") and (path.exists() or path.name != name)
    return path if is_manifest else None


def _is_recorded(name: str) -> bool:
    return Path(name).is_file() and not _find_manifest(name)


def read_side(stack: ExitStack, name: str, range_seconds: int, clusters: list[str], now: int) -> Recording:
    """Return the recording of one of the two sides, which is empty if the scorer has yet to be tested.

    `name` is a recording, a manifest or a scorer. Current scores are recorded at `now` if `range_seconds` is 0. Raises
    BadParameter for a manifest without `range_seconds`.
    """
    path = Path(name)
    if _find_manifest(name) and not range_seconds:
        raise typer.BadParameter("is needed for a manifest: its scorer has no scores now", param_hint="--since")
    recording = stack.enter_context(Recording(path if _is_recorded(name) else None))
    if not _is_recorded(name):
        recording.name = path.stem if _find_manifest(name) else name
        if not range_seconds:
            with open_session() as command_session:
                _add_current_scores(recording, command_session.redis, name, now)
    recording.select_clusters(clusters)
    return recording


def test_sides(
    stack: ExitStack,
    sides: Iterable[tuple[str, Recording]],
    since: int,
    every: int,
    clusters: Collection[str],
    rate: float,
) -> bool:
    """Run the backtests of scorers and manifests cluster by cluster, so that both sides cover the same clusters.

    Returns True if Ctrl-C interrupted them.
    """
    tests = [(name, recording) for name, recording in sides if since and not _is_recorded(name)]
    if not tests:
        return False
    times = list_moments(since, every, hubclock.now())
    return run_all(
        (
            (read_subject(stack, None if _find_manifest(name) else name, cluster, _find_manifest(name)), recording)
            for cluster in clusters or _list_clusters()
            for name, recording in tests
        ),
        times,
        every,
        rate,
    )


def drop_folders(view: ComparisonView, sides: Sequence[Recording]) -> ComparisonView:
    """Return the view with file names instead of paths, because other machines do not have these folders."""

    def shorten(text: str) -> str:
        for side in sides:
            text = text.replace(side.name, Path(side.name).name)
        return text

    return view.model_copy(update={"a": shorten(view.a), "b": shorten(view.b), "notes": [*map(shorten, view.notes)]})


def _list_clusters() -> list[str]:
    """Return the clusters of a hub with the folder backend. Raises BadParameter without such a hub."""
    out = load_command_settings().out
    cluster_names = sorted(path.name for path in out.glob("clusters/*")) if out is not None else []
    if not cluster_names:
        raise typer.BadParameter("is needed where no hub on a folder runs", param_hint="--cluster")
    return cluster_names


def replay_placements(
    placements: list[str], a: Recording, b: Recording, common: Common
) -> tuple[list[PlacementDifference], list[str], list[str]]:
    """Return the differences of Placements, notes, and the problems of Placements that could not be read."""
    replay = find_replay()
    if replay is not None:
        return replay(placements, a, b, common)
    if placements:
        fail(f"--placement: {describe_missing_extra('optimizer')}", EXIT_USAGE)
    return [], [f"which Placements would have chosen otherwise: {describe_missing_extra('optimizer')}"], []


def _add_current_scores(recording: Recording, client: redis.Redis, scorer: str, at: int) -> None:
    """Add the current score of a scorer on each cluster to the recording, as a record at the time `at`.

    Raises UnknownScorerError, redis.RedisError.
    """
    scores = FleetQueries(client).scores(None, scorer).scores
    record = Registry(client).read_scorers()[scorer]
    for score in scores:
        recording.begin_question(
            Question(
                cluster=score.cluster,
                scorer=scorer,
                score_name=score.score_name,
                every=0,
                # Any validity suffices, because the query returns valid scores only.
                validity=1,
            )
        )
        items = {item.name: item.value for item in score.items} or _find_unpublished_items(score, record)
        if items:
            recording.add_record(Record(cluster=score.cluster, at=at, outcome="ok", items=items))


def _find_unpublished_items(score: ScoreView, record: ScorerRecord) -> dict[str, int]:
    """Return the items that `scoreDestination: None` leaves out. Raises ScoreObjectTooLargeError."""
    return build_rule_items([(result.metric, result.score) for result in score.results], record, score.cluster).values


def store_run_for_page(scorers: list[str], **run_fields: Any) -> None:
    """Store a result, given as fields of KeptRun, for the page of these scorers.

    Raises BacktestError if the hub has none of the scorers, redis.RedisError.
    """
    with open_session() as command_session:
        now = hubclock.now()
        run = KeptRun(id=make_run_id(now), at=now, by=get_local_user(), way="cli", **run_fields)
        scorer_names = store_run(command_session.redis, scorers, run)
    typer.echo(f"dsf: kept for the page of {', '.join(scorer_names)}", err=True)


def _with_progress(records: Iterator[Record], title: str, total: int) -> Iterator[Record]:
    """Yield the records, with a progress bar on standard error if that is a terminal."""
    from rich.console import Console
    from rich.progress import track

    is_shown = sys.stderr.isatty()
    yield from track(records, title, total=total, console=Console(stderr=True), transient=True, disable=not is_shown)
