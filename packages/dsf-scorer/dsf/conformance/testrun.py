"""Runs the cases of a file: sends the request, makes items of the response, and compares them with expected items."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from pydantic import Field

from dsf.api.resolve import resolve
from dsf.api.scorer import DynamicScorer
from dsf.api.scorerule import ScoreRule, build_rule_items
from dsf.api.scoringauthentication import ClusterFacts
from dsf.api.scoringresponse import select_used_labels
from dsf.api.summary import ScorerSummary
from dsf.api.templates import Renderer
from dsf.conformance.case import Case
from dsf.conformance.inprocess import NotServedError, served
from dsf.conformance.notation import make_series
from dsf.conformance.report import CheckEnded, fail
from dsf.conformance.target import ScoringApiTarget
from dsf.conformance.testfile import TestCase, TestFile
from dsf.cycle.composite import NoResults, Result
from dsf.cycle.stages import evaluate
from dsf.errors import CycleError, ResolutionError, ScoreObjectTooLargeError
from dsf.fleet.views import View
from dsf.text import shorten_url

#: Seconds between two samples if neither file nor /config has a step.
_DEFAULT_STEP_SECONDS = 60


class CaseResult(View):
    """The outcome of one case of a test file."""

    file: str
    line: int
    name: str
    failures: list[str] = Field(
        default=[], description="Expected and actual values of each failed check; empty if the case passed."
    )
    seconds: float = 0.0


class TestReport(View):
    """The outcomes of all cases of all test files."""

    __test__ = False

    passed: bool
    cases: list[CaseResult]


def run(file: TestFile, token: str | None, timeout: float) -> list[CaseResult]:
    """Return the results of a file's cases, in their order. `timeout` is in seconds and for each scoring request."""
    context: AbstractContextManager[str] = nullcontext(file.url)
    if file.scorer:
        context = served(file.scorer, file.path.resolve().parent)
    try:
        with context as url:
            return [_run(file, index, url, token, timeout) for index in range(len(file.cases))]
    except NotServedError as error:
        failure = f"{file.where('scorer')}: scorer: {error}"
        return [
            CaseResult(file=str(file.path), line=file.line("tests", index), name=case.name, failures=[failure])
            for index, case in enumerate(file.cases)
        ]


def _run(file: TestFile, index: int, url: str, token: str | None, timeout: float) -> CaseResult:
    case, started_at = file.cases[index], time.monotonic()
    service_case = Case(url=url + file.registered[index].config, target=ScoringApiTarget(timeout), token=token)
    try:
        items, note = _build_items(file, index, service_case)
        failures = _list_failures(file, index, items)
        if failures and note:
            failures[-1] += f"; {note}"
    except CheckEnded as verdict:
        failures = [f"{file.where('tests', index)}: {case.name}: {verdict.message}"]
        failures[0] += f"; {verdict.mend}" if verdict.mend else ""
    return CaseResult(
        file=str(file.path),
        line=file.line("tests", index),
        name=case.name,
        failures=failures,
        seconds=round(time.monotonic() - started_at, 3),
    )


def _build_items(file: TestFile, index: int, service_case: Case) -> tuple[dict[str, int], str]:
    """Return the items that the hub would publish, and why others are missing. Raises CheckEnded."""
    case, registered = file.cases[index], file.registered[index]
    if registered.scorer is not None:
        return _evaluate_items(case, registered.scorer)
    if service_case.config is None:
        raise fail(
            f"{shorten_url(service_case.url)}: {service_case.config_reply.error or 'is no /config'}",
            "`dsf scorer check` says what is wrong",
        )
    results = service_case.fetch_scores(_make_api_request(case, service_case), "the case's series").results
    rule = ScoreRule(
        score_name=service_case.config.scoring.params.name,
        dimension_formats=registered.formats,
        aggregate=registered.aggregate,
    )
    try:
        return build_rule_items(results, rule, case.cluster).values, ""
    except ScoreObjectTooLargeError as error:
        raise fail(str(error), "") from None


def _evaluate_items(case: TestCase, scorer: DynamicScorer) -> tuple[dict[str, int], str]:
    """Return the items that the hub would publish for an expression, and why others are missing. Raises CheckEnded."""
    try:
        summary = resolve(scorer, renderer=Renderer(ClusterFacts(case.cluster, case.cluster_labels))).summary
        sources = [source.source_name or "" for source in summary.each_source]
        queries, request = _make_expression_request(
            case, sources, case.interval or summary.source_step or _DEFAULT_STEP_SECONDS
        )
        response = evaluate(summary, case.cluster, [request], queries, partial(_find_results, case, summary))
        refused_count = response.refusal_counts.total()
        note = f"{refused_count} refused: {response.note}" if refused_count else response.note
        return build_rule_items(response.results, summary.rule, case.cluster).values, note
    except ResolutionError as error:
        raise fail(str(error), "") from None
    except CycleError as error:
        raise fail(error.message, "") from None
    except ScoreObjectTooLargeError as error:
        raise fail(str(error), "") from None


def _make_expression_request(case: TestCase, sources: Sequence[str], interval: int) -> tuple[list[int], bytes]:
    """Return the number of series of each source, and the request with all of them."""
    series_by_source: dict[str, list[dict[str, Any]]] = {name: [] for name in sources}
    for series in case.input_series:
        series_by_source.setdefault(series.source or sources[0], []).append(
            make_series(series.series, series.values, case.start_timestamp, interval)
        )
    request = {"data": [series for source_series in series_by_source.values() for series in source_series]}
    return [len(source_series) for source_series in series_by_source.values()], json.dumps(
        request, separators=(",", ":")
    ).encode()


def _find_results(
    case: TestCase, summary: ScorerSummary, scorer: str, namespace: str | None
) -> list[Result] | NoResults:
    """Return the last values of the series of a composite's input."""
    del namespace
    names = {score.name for score in summary.scores or () if score.scorer == scorer}
    results: list[Result] = [
        (select_used_labels(series.series), value)
        for series in case.input_series
        if series.source in names and (value := series.values[-1]) is not None
    ]
    return results or NoResults("the case has no series for it", is_expired=True)


def _make_api_request(case: TestCase, service_case: Case) -> bytes:
    """Return the scoring request, as an agent sends it. Raises CheckEnded for a source that /config does not have."""
    config = service_case.config
    names = [source.name for source in (config.sources if config is not None else None) or ()]
    step = config.first_source.params.step if config is not None else 0
    interval = case.interval or step or _DEFAULT_STEP_SECONDS
    series_by_source: dict[str, list[dict[str, Any]]] = {name: [] for name in names or [""]}
    for series in case.input_series:
        name = series.source or next(iter(series_by_source))
        if name not in series_by_source:
            allowed_sources = f"one of {', '.join(names)}" if names else "given, as there is only one source"
            raise fail(f"the source {name!r} of a series is not {allowed_sources}", "")
        series_by_source[name].append(make_series(series.series, series.values, case.start_timestamp, interval))
    request: dict[str, Any] = {"data": next(iter(series_by_source.values()))}
    if names:
        request["sources"] = series_by_source
    return json.dumps(request, separators=(",", ":")).encode()


def _list_failures(file: TestFile, index: int, items: dict[str, int]) -> list[str]:
    case, failures = file.cases[index], []
    for number, expected_item in enumerate(case.exp_items):
        file_location = file.where("tests", index, "exp_items", number)
        location = f"{file_location}: {case.name}: exp_items[{number}] {expected_item.name!r}"
        tolerance_text = f" within {expected_item.tolerance:g}" if expected_item.tolerance else ""
        expectation = f"expected {expected_item.value:g}{tolerance_text}"
        if expected_item.name not in items:
            other_items = ", ".join(map(repr, list(items)[:5])) or "no items"
            failures.append(f"{location}: {expectation}, got no such item but {other_items}")
        elif abs(items[expected_item.name] - expected_item.value) > expected_item.tolerance:
            failures.append(f"{location}: {expectation}, got {items[expected_item.name]}")
    expected_names = {expected_item.name for expected_item in case.exp_items}
    failures += [
        f"{file.where('tests', index, 'exp_items')}: {case.name}: exp_items: expected no item {name!r}, got {value}"
        for name, value in items.items()
        if name not in expected_names
    ]
    return failures
