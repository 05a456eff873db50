"""Items of the conformance check about scores."""

from __future__ import annotations

import re
import statistics
from collections import Counter

from dsf.api.promql import split_queries
from dsf.api.score import PLACEHOLDERS, DimensionFormat, to_score_value
from dsf.api.scoringresponse import ScoringResponse
from dsf.api.summary import DEFAULT_TIMEOUT_SECONDS
from dsf.api.types import USED_LABELS
from dsf.conformance import samples
from dsf.conformance.case import Case, check_refused_results
from dsf.conformance.report import fail, skip, warn

_PLACEHOLDER_PATTERN = re.compile(r"\$\{[^${}]*\}|\$[A-Za-z_]\w*")
_NO_SERIES_MESSAGE = "the source type is None: the framework sends no series"
_NO_RESULTS_MESSAGE = "there are no results for made-up series; give real ones with --prometheus or --sample"
_MADE_UP_MESSAGE = "the made-up series are to blame: give real ones with --prometheus or --sample"


def query(case: Case) -> str:
    """Check that a Prometheus server accepts the queries of /config and has series for them."""
    sources = case.prometheus_sources
    if not sources:
        raise skip("the source is not Prometheus")
    if not case.prometheus:
        raise skip("not run: nobody knows yet whether it parses and finds something; --prometheus URL runs it")
    series_counts = []
    for source in sources:
        for promql in split_queries(source.params.query):
            series = case.fetch_series(source, promql)
            if not series:
                raise warn(f"no series for {promql}", "check the names of metrics and labels, and range and step")
            series_counts.append(f"{len(series)} series")
    is_used = case.recorded is None and case.samples.are_recorded
    return ", ".join(series_counts) + ("; the other points use them" if is_used else "")


def empty(case: Case) -> str:
    """Check that a request without series is answered with 200, with or without results."""
    response = case.fetch_scores(case.empty_request, 'an empty request, {"data": []}')
    check_refused_results("an empty request", response)
    if not case.has_series and not response.results:
        raise warn("the source type is None and there are no results, so there will never be a score", "give results")
    return _count(response)


def one_series(case: Case) -> str:
    """Check that one series gets a score."""
    return _check_scored(case, case.samples.one(), "one series")


def many_series(case: Case) -> str:
    """Check that several series, which differ in each label, get scores."""
    return _check_scored(case, case.samples.many(), "several series")


def gaps(case: Case) -> str:
    """Check series with missing samples, and a series without samples."""
    return _check_valid(case, case.samples.gaps(), "series with gaps, one of them without samples")


def nan(case: Case) -> str:
    """Check series with NaN, +Inf and -Inf."""
    return _check_valid(case, case.samples.nan(), "series with NaN, +Inf and -Inf")


def unknown_labels(case: Case) -> str:
    """Check series with missing, unknown and odd labels."""
    return _check_valid(case, case.samples.unknown_labels(), "series with missing, unknown and odd labels")


def large(case: Case) -> str:
    """Check a request of 1,000 series."""
    series = case.samples.large()
    text = _check_valid(case, series, f"{len(series)} series of {len(series[0]['values'])} samples")
    return f"{text}, {case.list_durations(case.make_request(series))[-1]:.2f} s"


def labels(case: Case) -> str:
    """Check that the labels of results give each result a name of its own."""
    response = _fetch_main_scores(case)
    if response.refusal_counts["bad_labels"]:
        raise fail(
            f"{response.refusal_counts['bad_labels']} results have labels that are not text",
            'send labels as text: {"metric": {"device": "0"}}',
        )
    if not response.results:
        raise skip(_NO_RESULTS_MESSAGE)
    if case.dimension:
        return _check_names(case, response)
    label_names = [name for name in USED_LABELS if any(result.labels.get(name) for result in response.results)]
    common_labels = Counter(samples.select_used_values(result.labels) for result in response.results).most_common(1)[0]
    if common_labels[1] > 1:
        shared_labels = {name: value for name, value in zip(USED_LABELS, common_labels[0], strict=True) if value}
        raise fail(
            f"{common_labels[1]} results have the same used labels {shared_labels}, so no scoreDimensionFormat can "
            "tell them apart",
            f"put what tells them apart into one of the labels {', '.join(USED_LABELS)}",
        )
    if not label_names:
        return "one result without labels; the default ${scoreName} names it"
    varying_labels = [
        name for name in label_names if len({result.labels.get(name) for result in response.results}) > 1
    ] or label_names
    dimension = ";".join(f"${{{name}}}" for name in varying_labels)
    return f"used labels are {', '.join(label_names)}; scoreDimensionFormat could be {dimension}"


def _check_names(case: Case, response: ScoringResponse) -> str:
    known_placeholders = [f"${{{name}}}" for name in PLACEHOLDERS]
    unknown_placeholders = [
        text for text in _PLACEHOLDER_PATTERN.findall(case.dimension) if text not in known_placeholders
    ]
    if unknown_placeholders:
        raise fail(
            f"{case.dimension} has {', '.join(unknown_placeholders)}, which no label fills: it would stay as it is "
            "in every name",
            f"placeholders are {', '.join(known_placeholders)}",
        )
    score_name = case.config.scoring.params.name if case.config is not None else "score"
    dimension = DimensionFormat(case.dimension, "cluster1", score_name)
    names = Counter(dimension.render(result.labels) for result in response.results)
    if names[""]:
        raise fail(f"{names['']} results have an empty name with {case.dimension}", "use labels that all results have")
    name, count = names.most_common(1)[0]
    if count > 1:
        raise fail(f"{count} results have the name {name!r} with {case.dimension}", "add a label that tells them apart")
    for label in (label for label in USED_LABELS if f"${{{label}}}" in case.dimension):
        without_label = [result for result in response.results if not result.labels.get(label)]
        if without_label:
            raise (fail if len(without_label) == len(response.results) else warn)(
                f"{len(without_label)} of {len(response.results)} results have no label {label}, so that names are "
                "such as "
                f"{dimension.render(without_label[0].labels)!r}",
                f"leave ${{{label}}} out of the scoreDimensionFormat, or keep the label in the query",
            )
    return f"{len(names)} names such as {name!r}"


def value_range(case: Case) -> str:
    """Check that scores are within -100..100 after they are rounded down."""
    response = _fetch_main_scores(case)
    if not response.results:
        raise skip(_NO_RESULTS_MESSAGE)
    scores = [result.score for result in response.results]
    range_text = f"from {min(scores):g} to {max(scores):g}"
    problem = _find_useless_reason(scores)
    if problem and case.has_series and not case.samples.are_recorded and not _is_useless_in_other_unit(case):
        raise warn(f"{problem}, they go {range_text}", f"scale the score, unless {_MADE_UP_MESSAGE}")
    if problem:
        raise fail(f"{problem}, they go {range_text}", "scale the score so that it uses the range of -100 to 100")
    outside_count = sum(to_score_value(score)[1] for score in scores)
    if outside_count:
        raise warn(
            f"{outside_count} of {len(scores)} scores are outside of -100..100 and would be limited, they go "
            f"{range_text}",
            f"scale the score, unless {_MADE_UP_MESSAGE}",
        )
    return range_text


def _find_useless_reason(scores: list[float]) -> str:
    """Return why every cluster would get nearly the same score, whatever its series; empty if scores differ."""
    if all(to_score_value(score)[1] for score in scores):
        return f"all {len(scores)} scores are outside of -100..100 and would be limited"
    if all(-1 <= score <= 1 for score in scores) and not all(score.is_integer() for score in scores):
        published_scores = sorted({to_score_value(score)[0] for score in scores})
        values_text = " or ".join(map(str, published_scores))
        return f"all {len(scores)} scores are between -1 and 1 and are published as {values_text}"
    return ""


def _is_useless_in_other_unit(case: Case) -> bool:
    """True if scores are useless too for series in the other unit, of percent and fractions of 1."""
    response = case.fetch_scores(case.make_request(case.samples.many_of_other_unit()), "several series in another unit")
    return not response.results or bool(_find_useless_reason([result.score for result in response.results]))


def determinism(case: Case) -> str:
    """Check that two equal requests get equal scores."""
    first_scores, second_scores = (_group_by_labels(_fetch_main_scores(case, again=again)) for again in (False, True))
    if not first_scores and not second_scores:
        raise skip(_NO_RESULTS_MESSAGE)
    if first_scores.keys() != second_scores.keys():
        raise fail("two equal requests have results with different labels", "make results depend on the request alone")
    different_scores = [
        (score, other_score)
        for labels, scores in first_scores.items()
        for score, other_score in zip(scores, second_scores[labels], strict=False)
        # Summation in another order changes the last digits.
        if abs(score - other_score) > 1e-6 * max(1.0, abs(score))
    ]
    if different_scores:
        score, other_score = different_scores[0]
        raise fail(
            f"two equal requests have different scores, {score:g} and {other_score:g} for one of "
            f"{len(different_scores)}",
            "make scores depend on the request alone: noise wakes the scheduler of every cluster",
        )
    return "equal"


def speed(case: Case) -> str:
    """Check that the typical request is answered well within interval and timeout."""
    while len(case.list_durations(case.main_request)) < 3:
        _fetch_main_scores(case, again=True)
    seconds = statistics.median(case.list_durations(case.main_request))
    interval = case.config.scoring.params.interval if case.config is not None else 0
    allowed_seconds = min(interval or DEFAULT_TIMEOUT_SECONDS, DEFAULT_TIMEOUT_SECONDS)
    duration_text = f"{seconds:.3f} s, of {allowed_seconds} s that are allowed by interval and time-out"
    if seconds >= allowed_seconds:
        raise fail(duration_text, "be faster, or raise scoring.params.interval or spec.execution.timeoutSeconds")
    if seconds > allowed_seconds / 2:
        raise warn(duration_text, "a busy moment would make it too slow; be faster or raise the interval")
    return duration_text


def _check_valid(case: Case, series: list[samples.RawSeries], name: str) -> str:
    if not case.has_series:
        raise skip(_NO_SERIES_MESSAGE)
    response = case.fetch_scores(case.make_request(series), name)
    # The item `labels` judges bad labels.
    check_refused_results(name, response, accepted_reasons=("bad_labels",))
    return _count(response) + _format_dropped(case.count_dropped(case.make_request(series)))


def _check_scored(case: Case, series: list[samples.RawSeries], name: str) -> str:
    """Check series without gaps, each of which is expected to get a score."""
    response_summary = _check_valid(case, series, name)
    body = case.make_request(series)
    response, dropped_counts = case.fetch_scores(body, name), case.count_dropped(body)
    reason_text = f" ({', '.join(dropped_counts)})" if dropped_counts else ""
    mend = "compute a finite number for each series" + (
        "" if case.samples.are_recorded else f", unless {_MADE_UP_MESSAGE}"
    )
    if not response.results:
        raise warn(
            f"{name}: every result was dropped{reason_text}" if dropped_counts else f"{name}: no series has a score",
            mend,
        )
    if unscored_series := _find_unscored_series(series, response):
        raise warn(
            f"{name}: {len(unscored_series)} of {len(series)} have no score{reason_text}, such as {unscored_series[0]}",
            mend,
        )
    if dropped_counts:
        raise warn(f"{name}: {response_summary}", mend)
    return response_summary


def _find_unscored_series(series: list[samples.RawSeries], response: ScoringResponse) -> list[dict[str, str]]:
    """Return the labels of series without a result, if each result belongs to one series."""
    labels = {samples.select_used_values(item["metric"]): item["metric"] for item in series}
    scored_labels = {samples.select_used_values(result.labels) for result in response.results}
    return [labels[label_key] for label_key in labels.keys() - scored_labels] if scored_labels < labels.keys() else []


def _format_dropped(dropped_counts: Counter[str]) -> str:
    return (
        f", {', '.join(f'{number} {reason}' for reason, number in dropped_counts.items())} left out"
        if dropped_counts
        else ""
    )


def _fetch_main_scores(case: Case, *, again: bool = False) -> ScoringResponse:
    return case.fetch_scores(case.main_request, "the everyday request", again=again)


def _group_by_labels(response: ScoringResponse) -> dict[tuple[str, ...], list[float]]:
    scores: dict[tuple[str, ...], list[float]] = {}
    for labels_, score in response.results:
        scores.setdefault(samples.select_used_values(labels_), []).append(score)
    return scores


def _count(response: ScoringResponse) -> str:
    count = len(response.results)
    return f"{count} result{'' if count == 1 else 's'}"
