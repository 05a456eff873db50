"""Checks a DynamicScorer with an expression: the manifest, the expression, and its value for a Prometheus server."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from dsf.agent.secrets import FileSecrets, Release
from dsf.api.manifest import ParsedDocument, parse_documents
from dsf.api.resolve import resolve
from dsf.api.scorer import DynamicScorer
from dsf.api.scoringauthentication import ClusterFacts
from dsf.api.summary import ScorerSummary
from dsf.api.templates import Renderer
from dsf.api.types import SourceType
from dsf.api.urls import get_base_url
from dsf.conformance.report import CheckEnded, ConformanceReport, Finding, Outcome, fail, skip, warn
from dsf.cycle.stages import Cycle, Stages
from dsf.errors import CycleError, ResolutionError
from dsf.settings import Settings

_CLUSTER = "cluster1"


def check(file: Path, prometheus: str) -> ConformanceReport:
    """Judge the DynamicScorers of a manifest. `prometheus` is the URL of a server for their queries, or empty.

    Raises OSError and UnicodeDecodeError.
    """
    documents = parse_documents(file.read_text(encoding="utf-8"), str(file))
    mistakes = [
        str(document)
        for document in documents
        if not isinstance(document, ParsedDocument) and document.severity == "error"
    ]
    objects = [document.object for document in documents if isinstance(document, ParsedDocument)]
    scorers = [scorer for scorer in objects if isinstance(scorer, DynamicScorer) and scorer.spec.scoring.expression]
    findings = [Finding(point="manifest", outcome=Outcome.FAIL, message=mistake) for mistake in mistakes]
    if not scorers and not findings:
        message = f"{file} has no DynamicScorer with scoring.expression"
        findings = [Finding(point="manifest", outcome=Outcome.FAIL, message=message, mend="give a configURL")]
    findings += [
        finding for scorer in scorers for finding in _iterate_findings(scorer, prometheus, many=len(scorers) > 1)
    ]
    return ConformanceReport.of(str(file), "", findings)


def _iterate_findings(scorer: DynamicScorer, prometheus: str, *, many: bool) -> Iterator[Finding]:
    prefix = f"{scorer.metadata.name}: " if many else ""
    for point, judge in (("expression", _expression), ("query", partial(_query, prometheus=prometheus))):
        finding = _judge_point(f"{prefix}{point}", partial(judge, scorer))
        yield finding
        if finding.outcome is Outcome.FAIL:
            return


def _judge_point(point: str, judge: Callable[[], str]) -> Finding:
    started_at = time.monotonic()
    outcome, mend = Outcome.PASS, ""
    try:
        message = judge()
    except CheckEnded as verdict:
        outcome, message, mend = verdict.outcome, verdict.message, verdict.mend
    return Finding(point=point, outcome=outcome, message=message, mend=mend, seconds=time.monotonic() - started_at)


def _make_summary(scorer: DynamicScorer) -> ScorerSummary:
    try:
        return resolve(scorer, fill=Renderer(ClusterFacts(_CLUSTER))).summary
    except ResolutionError as error:
        raise fail(str(error), "correct the manifest") from None


def _expression(scorer: DynamicScorer) -> str:
    """Check that the expression compiles."""
    formula = _make_summary(scorer).formula
    if formula is None:
        raise RuntimeError("the scorer has no expression")
    return f"it reads {', '.join(sorted(formula.variables)) or 'no variable'}"


def _query(scorer: DynamicScorer, *, prometheus: str) -> str:
    """Check that the queries have series, and that the expression has values for them."""
    summary = _make_summary(scorer)
    if {source.source_type for source in summary.each_source} != {SourceType.Prometheus}:
        raise skip("the source is not Prometheus")
    if not prometheus:
        raise skip("not run; --prometheus URL runs it and evaluates the expression")
    summary = summary.model_copy(update={"source_endpoint": _move_url(summary.source_endpoint, prometheus)})
    if summary.sources:
        moved_sources = tuple(
            source.model_copy(update={"endpoint": _move_url(source.endpoint, prometheus)}) for source in summary.sources
        )
        summary = summary.model_copy(update={"sources": moved_sources})
    settings = Settings()
    stages = Stages(settings, FileSecrets(None, Release(settings)))
    cycle = Cycle(summary.name, "", summary, math.inf, cluster=_CLUSTER)
    try:
        payload = stages.fetch(cycle)
        stages.score(cycle, b"".join(payload.pieces))
    except CycleError as error:
        raise fail(error.message, "correct the query or the expression") from None
    response = cycle.response
    if response is None:
        raise RuntimeError("the cycle was not scored")
    counts_text = f"{payload.series} series, {len(response.results)} results"
    if response.refused:
        raise warn(f"{counts_text}, {response.refused.total()} refused: {response.note}", "handle it in the expression")
    if not response.results:
        raise warn(f"{counts_text}: {response.note}", "check the names of metrics and labels")
    return counts_text


def _move_url(url: str, server: str) -> str:
    return get_base_url(server) + url.removeprefix(get_base_url(url))
