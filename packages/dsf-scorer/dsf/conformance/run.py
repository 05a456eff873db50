"""Runs the items of a conformance check in order. An item depends on items that must pass before it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from dsf.conformance import scoring, service
from dsf.conformance.case import Case
from dsf.conformance.report import CheckEnded, ConformanceReport, Finding, Outcome
from dsf.errors import HttpError
from dsf.text import shorten_url


class ConformanceCheck(NamedTuple):
    """An item of the check. `judge` returns a description of what it observed, or raises CheckEnded."""

    name: str
    judge: Callable[[Case], str]
    #: Items that must pass before this one. `main` means many-series, or empty for a scorer without a source.
    needs: tuple[str, ...] = ()


_SCORES = ("paths", "token")
POINTS = (
    ConformanceCheck("health", service.health),
    ConformanceCheck("config", service.config),
    ConformanceCheck("redirects", service.redirects),
    ConformanceCheck("paths", service.paths, ("config", "redirects")),
    ConformanceCheck("token", service.token, ("paths",)),
    ConformanceCheck("query", scoring.query, ("config",)),
    ConformanceCheck("empty", scoring.empty, _SCORES),
    ConformanceCheck("one-series", scoring.one_series, _SCORES),
    ConformanceCheck("many-series", scoring.many_series, (*_SCORES, "one-series")),
    ConformanceCheck("labels", scoring.labels, (*_SCORES, "main")),
    ConformanceCheck("range", scoring.value_range, (*_SCORES, "main")),
    ConformanceCheck("gaps", scoring.gaps, (*_SCORES, "one-series")),
    ConformanceCheck("nan", scoring.nan, (*_SCORES, "one-series")),
    ConformanceCheck("unknown-labels", scoring.unknown_labels, (*_SCORES, "one-series")),
    ConformanceCheck("large", scoring.large, (*_SCORES, "one-series", "many-series")),
    ConformanceCheck("bad-json", service.bad_json, _SCORES),
    ConformanceCheck("content-type", service.content_type, (*_SCORES, "main")),
    ConformanceCheck("determinism", scoring.determinism, (*_SCORES, "main")),
    ConformanceCheck("speed", scoring.speed, (*_SCORES, "main")),
)
NAMES = tuple(point.name for point in POINTS)


def check(case: Case, skipped: Collection[str] = ()) -> ConformanceReport:
    """Judge all items except those in `skipped`."""
    findings = {finding.point: finding for finding in _iterate_findings(case, skipped)}
    try:
        scoring_url = case.scoring_url
    except CheckEnded:
        scoring_url = ""
    return ConformanceReport.of(shorten_url(case.url), shorten_url(scoring_url), list(findings.values()))


def _iterate_findings(case: Case, skipped_points: Collection[str]) -> Iterator[Finding]:
    unfit_points: set[str] = set()
    for point in POINTS:
        started_at = time.monotonic()
        finding = _judge(point, case, unfit_points, skipped_points)
        if finding.outcome is Outcome.FAIL or (
            finding.outcome is Outcome.SKIPPED and _is_relevant(point, case, skipped_points)
        ):
            unfit_points.add(point.name)
        yield finding.model_copy(update={"seconds": round(time.monotonic() - started_at, 3)})


def _judge(
    point: ConformanceCheck, case: Case, unfit_points: Collection[str], skipped_points: Collection[str]
) -> Finding:
    if point.name in skipped_points:
        return Finding(point=point.name, outcome=Outcome.SKIPPED, message="as --skip says")
    main_point = "many-series" if case.has_series else "empty"
    required_points = [main_point if name == "main" else name for name in point.needs]
    if case.path:
        # With --path, scores can be requested without /config.
        required_points = [name for name in required_points if name != "config"]
    unfit_requirements = [name for name in required_points if name in unfit_points]
    if unfit_requirements:
        message = f"cannot be judged without {' and '.join(unfit_requirements)}"
        return Finding(point=point.name, outcome=Outcome.SKIPPED, message=message)
    try:
        return Finding(point=point.name, outcome=Outcome.PASS, message=point.judge(case))
    except CheckEnded as ended:
        return Finding(point=point.name, outcome=ended.outcome, message=ended.message, mend=ended.mend)
    except HttpError as error:
        mend = "check the service's log"
        return Finding(point=point.name, outcome=Outcome.FAIL, message=str(error), mend=mend)


def _is_relevant(point: ConformanceCheck, case: Case, skipped_points: Collection[str]) -> bool:
    """True if the items that need this item cannot be judged when it is skipped.

    They can be judged without a token that the API does not require, without queries that were not run, without an item
    that the user left out, and without series if the scorer gets none.
    """
    if point.name in skipped_points or point.name in ("token", "query"):
        return False
    return case.has_series or point.name in ("config", "paths")
