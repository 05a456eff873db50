"""What `dsf backtest` and `dsf compare` share: the scorer that is asked for, and a run with progress."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from dsf import http
from dsf.agent.secrets import FileSecrets, Release
from dsf.api.summary import ScorerSummary
from dsf.auth.secrets import SecretSource
from dsf.backtest.kept import KeptRun, keep, new_id
from dsf.backtest.record import Question, QuestionLine, Record
from dsf.backtest.recording import Recording
from dsf.backtest.run import run
from dsf.backtest.scorers import from_hub, from_manifest, redirected
from dsf.cli import delivered
from dsf.cli.person import who
from dsf.cli.session import agent_settings, hub_settings, session
from dsf.errors import UnknownScorerError
from dsf.http import transport
from dsf.settings import Settings


@dataclass(frozen=True)
class Subject:
    """One scorer on one cluster, with what its requests need."""

    cluster: str
    summary: ScorerSummary
    settings: Settings
    secrets: SecretSource

    def run(
        self,
        recording: Recording,
        moments: range,
        every: int,
        rate: float,
        see: Callable[[QuestionLine | Record], None] | None = None,
    ) -> None:
        """Ask the moments that the recording lacks; `see` gets all lines, also those that it has.

        Raises KeyboardInterrupt, BacktestError; what was asked is in the recording by then.
        """
        see = see or (lambda _: None)
        # A name may lead to another server on each cluster, and connections are kept by name.
        http.use(self.settings)
        transport.close()
        question = Question.of(self.cluster, self.summary, every)
        recording.begin(question)
        see(QuestionLine(question=question))
        missing = recording.missing(self.cluster, moments)
        for record in recording.records(self.cluster, moments[0], moments[-1]):
            if record.outcome != "error":
                see(record)
        asked = run(self.cluster, self.summary, self.settings, self.secrets, missing, rate=rate)
        for record in _with_progress(asked, f"{self.summary.name} on {self.cluster}", len(missing)):
            recording.add(record)
            see(record)


def subject(
    stack: ExitStack,
    scorer: str | None,
    cluster: str,
    manifest: Path | None,
    scorer_url: str = "",
    source_url: str = "",
) -> Subject:
    """A scorer as it was delivered to the cluster, else as the hub has it, or the one in `manifest`.

    Raises DsfError, which says what is missing and where.
    """
    settings = agent_settings(cluster)
    http.use(settings)
    if settings.agent_kube:
        # Beside an agent: its cycles go first.
        os.nice(10)
    delivery = None
    if settings.agent_config is not None:
        delivery = delivered.from_file(settings.agent_config, settings)
    elif settings.agent_kube:
        delivery = stack.enter_context(delivered.from_cluster(cluster, settings))
    if manifest is not None:
        summary = from_manifest(manifest, scorer, cluster, scorer_url)
    elif delivery is None:
        summary = _of_hub(settings, scorer or "", cluster, scorer_url)
    elif (found := delivery.summaries.get(scorer or "")) is not None:
        summary = found
    else:
        known = ", ".join(sorted(delivery.summaries)) or "none"
        raise UnknownScorerError(
            f"scorer {scorer!r} was not delivered to cluster {cluster!r} ({delivery.where} has: {known}); see "
            "`dsf status`, or test a manifest with -f"
        )
    secrets = delivery.secrets if delivery else FileSecrets(settings.agent_secrets_dir, Release(settings))
    return Subject(cluster, redirected(summary, scorer_url, source_url), settings, secrets)


def _of_hub(settings: Settings, scorer: str, cluster: str, scorer_url: str) -> ScorerSummary:
    from dsf.kube.session import Session

    kubeconfig = hub_settings(settings).kubeconfig
    if kubeconfig is None and "KUBERNETES_SERVICE_HOST" not in os.environ:
        raise UnknownScorerError(
            f"nothing says what scorer {scorer!r} is: no demo runs here, and there is neither a kubeconfig of the hub "
            "nor DSF_AGENT_CONFIG; -f tests a manifest"
        )
    with closing(Session.load(kubeconfig)) as hub:
        return from_hub(hub, scorer, cluster, scorer_url)


@contextmanager
def kept_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Ctrl-C ends the block, not the command. Yields whether that happened."""
    interrupted = False
    try:
        yield lambda: interrupted
    except KeyboardInterrupt:
        interrupted = True
        typer.echo("dsf: interrupted; what was computed is kept", err=True)


def keep_run(scorers: list[str], **found: Any) -> None:
    """Store what was found (fields of KeptRun) for the page of these scorers.

    Raises BacktestError if the hub has none of them, redis.RedisError.
    """
    now = time.time()
    run = KeptRun(id=new_id(now), at=now, by=who(), way="cli", **found)
    with session() as opened:
        kept = keep(opened.redis, scorers, run)
    typer.echo(f"dsf: kept for the page of {', '.join(kept)}", err=True)


def _with_progress(records: Iterator[Record], title: str, total: int) -> Iterator[Record]:
    """The records, with a bar on standard error if that is a terminal."""
    if not sys.stderr.isatty():
        yield from records
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(records, title, total=total, console=Console(stderr=True), transient=True)
