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

_STAND_IN_CLUSTER = "cluster1"


def check_manifest(manifest_path: Path, prometheus_url: str) -> ConformanceReport:
    """Judge the DynamicScorers of a manifest. `prometheus_url` is the URL of a server for their queries, or empty.

    Raises OSError and UnicodeDecodeError.
    """
    documents = parse_documents(manifest_path.read_text(encoding="utf-8"), str(manifest_path))
    mistakes = [
        str(document)
        for document in documents
        if not isinstance(document, ParsedDocument) and document.severity == "error"
    ]
    objects = [document.object for document in documents if isinstance(document, ParsedDocument)]
    scorers = [scorer for scorer in objects if isinstance(scorer, DynamicScorer) and scorer.spec.scoring.expression]
    findings = [Finding(point="manifest", outcome=Outcome.FAIL, message=mistake) for mistake in mistakes]
    if not scorers and not findings:
        message = f"{manifest_path} has no DynamicScorer with scoring.expression"
        findings = [Finding(point="manifest", outcome=Outcome.FAIL, message=message, mend="give a configURL")]
    findings += [
        finding
        for scorer in scorers
        for finding in _iterate_findings(scorer, prometheus_url, has_several_scorers=len(scorers) > 1)
    ]
    return ConformanceReport.of(str(manifest_path), "", findings)


def _iterate_findings(scorer: DynamicScorer, prometheus_url: str, *, has_several_scorers: bool) -> Iterator[Finding]:
    prefix = f"{scorer.metadata.name}: " if has_several_scorers else ""
    check_query = partial(_check_query, prometheus_url=prometheus_url)
    for point, judge in (("expression", _check_expression), ("query", check_query)):
        finding = _judge_point(f"{prefix}{point}", partial(judge, scorer))
        yield finding
        if finding.outcome is Outcome.FAIL:
            return


def _judge_point(point: str, judge: Callable[[], str]) -> Finding:
    started_at = time.monotonic()
    outcome, mend = Outcome.PASS, ""
    try:
        message = judge()
    except CheckEnded as ended:
        outcome, message, mend = ended.outcome, ended.message, ended.mend
    return Finding(point=point, outcome=outcome, message=message, mend=mend, seconds=time.monotonic() - started_at)


def _make_summary(scorer: DynamicScorer) -> ScorerSummary:
    try:
        return resolve(scorer, renderer=Renderer(ClusterFacts(_STAND_IN_CLUSTER))).summary
    except ResolutionError as error:
        raise fail(str(error), "correct the manifest") from None


def _check_expression(scorer: DynamicScorer) -> str:
    """Check that the expression compiles."""
    formula = _make_summary(scorer).formula
    if formula is None:
        raise RuntimeError("the scorer has no expression")
    return f"it reads {', '.join(sorted(formula.variables)) or 'no variable'}"


def _check_query(scorer: DynamicScorer, *, prometheus_url: str) -> str:
    """Check that the queries have series, and that the expression has values for them."""
    summary = _make_summary(scorer)
    if {source.source_type for source in summary.each_source} != {SourceType.Prometheus}:
        raise skip("the source is not Prometheus")
    if not prometheus_url:
        raise skip("not run; --prometheus URL runs it and evaluates the expression")
    summary = summary.model_copy(update={"source_endpoint": _replace_server(summary.source_endpoint, prometheus_url)})
    if summary.sources:
        moved_sources = tuple(
            source.model_copy(update={"endpoint": _replace_server(source.endpoint, prometheus_url)})
            for source in summary.sources
        )
        summary = summary.model_copy(update={"sources": moved_sources})
    settings = Settings()
    stages = Stages(settings, FileSecrets(None, Release(settings)))
    cycle = Cycle(summary.name, "", summary, math.inf, cluster=_STAND_IN_CLUSTER)
    try:
        payload = stages.fetch(cycle)
        stages.score(cycle, b"".join(payload.pieces))
    except CycleError as error:
        raise fail(error.message, "correct the query or the expression") from None
    response = cycle.response
    if response is None:
        raise RuntimeError("the cycle was not scored")
    counts_text = f"{payload.series} series, {len(response.results)} results"
    if response.refusal_counts:
        raise warn(
            f"{counts_text}, {response.refusal_counts.total()} refused: {response.note}", "handle it in the expression"
        )
    if not response.results:
        raise warn(f"{counts_text}: {response.note}", "check the names of metrics and labels")
    return counts_text


def _replace_server(url: str, server: str) -> str:
    return get_base_url(server) + url.removeprefix(get_base_url(url))
