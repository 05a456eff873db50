"""Items of the conformance check about the service: health, /config, paths, token, content type."""

from __future__ import annotations

import contextlib
import posixpath
from urllib.parse import urlsplit

from pydantic import ValidationError

from dsf.api.meta import ObjectMeta
from dsf.api.remoteconfig import parse_remote_config
from dsf.api.resolve import resolve
from dsf.api.scorer import DynamicScorer, DynamicScorerSpec, DynamicScorerStatus
from dsf.api.summary import ScorerSummary
from dsf.api.types import ConfigSyncMode, SourceType
from dsf.api.urls import get_base_url, join_url
from dsf.conformance.case import Case, make_verdict
from dsf.conformance.report import CheckEnded, fail, skip, warn
from dsf.conformance.target import HUB_TIMEOUT, Reply
from dsf.errors import RemoteConfigError, ResolutionError
from dsf.text import describe_request

#: Maximum samples of a series in a response of Prometheus.
_MAX_POINTS = 11_000
_REDIRECT_MESSAGE = "it answers with a redirect, see the point redirects"
_WRONG_CREDENTIAL = "not-the-right-token"


def health(case: Case) -> str:
    """Check that GET /healthz at the root of the host answers 200."""
    reply = case.health
    if reply.is_redirect:
        raise skip(_REDIRECT_MESSAGE)
    if reply.status == 404:
        raise warn(
            "GET /healthz at the root of the host answers 404; with configSyncMode Full /config counts instead",
            "serve /healthz at the root, even if the other paths have a prefix",
        )
    if reply.error is not None and reply.error.reason == "timeout":
        raise make_verdict("/healthz", reply.error, by_hub=True)
    if reply.error is not None:
        raise fail(
            str(reply.error), "answer 200 at /healthz at the root of the host; otherwise the scorer does not run"
        )
    _check_speed("/healthz", reply)
    return f"200 in {_format_milliseconds(reply.seconds)}"


def _check_speed(name: str, reply: Reply) -> None:
    """Raise CheckEnded with a warning if the response took more than half of the hub's timeout."""
    if reply.seconds > HUB_TIMEOUT / 2:
        raise warn(
            f"{name} took {reply.seconds:.1f} s of the {HUB_TIMEOUT:g} s that the hub waits",
            "answer faster: a scorer that is late three times in a row is Inactive and does not score",
        )


def redirects(case: Case) -> str:
    """Check that no endpoint redirects."""
    replies = {"/healthz": case.health, "configURL": case.config_reply}
    if case.config is not None or case.path:
        # The items config and paths report a wrong URL.
        with contextlib.suppress(CheckEnded):
            replies["the scoring path"] = case.request_scores(case.empty_request)
    leading = [f"{name}: {reply.error}" for name, reply in replies.items() if reply.is_redirect]
    if leading:
        raise fail(
            "; ".join(leading), "answer at the URL itself; often it is a slash at the end that is missing or too much"
        )
    return f"none of {', '.join(replies)} redirects"


def config(case: Case) -> str:
    """Check that the configURL answers 200 and a complete /config."""
    reply = case.config_reply
    if reply.is_redirect:
        raise skip(_REDIRECT_MESSAGE)
    if reply.error is not None and reply.error.status == 404:
        example = join_url(get_base_url(case.url), "/config")
        remedy = f"give the whole configURL, such as {example}"
        if case.url == example:
            remedy = "give the path of /config too, or the port of your scoring API: another program may use this one"
        raise fail(f"configURL: {reply.error}", remedy)
    if reply.error is not None:
        raise make_verdict("configURL", reply.error, by_hub=True)
    try:
        remote_config = parse_remote_config(reply.body)
    except RemoteConfigError as error:
        raise fail(str(error), "answer the JSON that docs/scoring-api.md shows") from None
    try:
        resolution = resolve(_make_scorer(case, remote_config))
    except (ResolutionError, ValidationError) as error:
        mend = "set it in /config, or in spec of the DynamicScorer"
        raise fail(str(error), mend) from None
    summary = resolution.summary
    for source in summary.each_source:
        _check_points(source)
    _check_speed("configURL", reply)
    if summary.source_type == SourceType.Prometheus and not remote_config.first_source.host:
        raise warn(
            "source.host is not said, so the framework would ask the host of configURL for the time series",
            "set spec.source.host in the DynamicScorer, or source.host in /config",
        )
    if not remote_config.name or not remote_config.description:
        raise warn("name or description is empty", "describe the meaning of the score for users")
    return f"score {summary.score_name} every {summary.scoring_interval} s, source {summary.source_type}"


def _check_points(summary: ScorerSummary) -> None:
    """Raise CheckEnded if Prometheus would refuse range and step, or return only one sample per series."""
    if summary.source_type != SourceType.Prometheus:
        return
    span, step = summary.source_range, summary.source_step
    if span // step > _MAX_POINTS:
        raise fail(
            f"range {span} s in steps of {step} s are {span // step + 1} points of each series; Prometheus refuses "
            f"more than {_MAX_POINTS}",
            "choose a longer source.params.step or a shorter range",
        )
    if step > span:
        raise warn(
            f"the step of {step} s is longer than the range of {span} s: each series has one sample, {span} s old",
            "choose a step that divides the range",
        )


def _make_scorer(case: Case, remote_config: object) -> DynamicScorer:
    spec: dict[str, object] = {"description": "", "configURL": case.url, "configSyncMode": ConfigSyncMode.Full}
    if case.token is not None:
        # With a token, the host must be that of configURL.
        spec["scoring"] = {"auth": {"tokenSecretRef": {"name": "token", "key": "token"}}}
    return DynamicScorer(
        metadata=ObjectMeta(name="check"),
        spec=DynamicScorerSpec.model_validate(spec),
        status=DynamicScorerStatus.model_validate({"lastSyncedConfig": remote_config}),
    )


def content_type(case: Case) -> str:
    """Check that /config and scores are sent as application/json."""
    media_types = {
        "/config": case.target.content_type(case.url, None, None),
        "scoring": case.target.content_type(case.scoring_url, case.main_request, case.token),
    }
    wrong_types = [
        f"{name}: {media_type or 'none'}"
        for name, media_type in media_types.items()
        if media_type != "application/json"
    ]
    if wrong_types:
        raise fail(
            f"the Content-Type is not application/json ({', '.join(wrong_types)})",
            "send Content-Type: application/json",
        )
    return "application/json"


def paths(case: Case) -> str:
    """Check that the scoring path is where /config says."""
    reply = case.request_scores(case.empty_request)
    if reply.status in (404, 405):
        path = _find_other_path(case)
        mend = (
            f"say scoring.path {path!r} in /config: it is joined to the host, not to the path of configURL"
            if path
            else "say in /config the whole path below the host, prefix included, and take POST there"
        )
        raise fail(f"POST {urlsplit(case.scoring_url).path} answers {reply.status}", mend)
    if reply.error is not None and reply.error.reason == "connection_failed":
        raise make_verdict("the scoring URL", reply.error)
    return describe_request("POST", case.scoring_url)


def _find_other_path(case: Case) -> str:
    """Return the path that accepts scoring requests if the prefix was forgotten or repeated; empty if none does."""
    prefix = posixpath.dirname(urlsplit(case.url).path)
    declared_path = urlsplit(case.scoring_url).path
    for path in (f"{prefix}{declared_path}", f"{prefix}/scoring", declared_path.removeprefix(prefix), "/scoring"):
        reply = case.target.post(join_url(get_base_url(case.url), path), case.empty_request, case.token)
        if reply.status not in (404, 405, None):
            return path
    return ""


def token(case: Case) -> str:
    """Check that an API with a token refuses requests with another token or without a token."""
    reply = case.request_scores(case.empty_request)
    if case.token is None:
        if reply.is_unauthorized:
            raise fail(str(reply.error), "give the token with --token-file")
        raise skip("no token was given, and none is wanted")
    if reply.is_unauthorized:
        raise fail(f"the token that was given is refused: {reply.error}", "give the token that the service knows")
    for description, wrong_token in (("a wrong token", _WRONG_CREDENTIAL), ("no token", None)):
        other_reply = case.target.post(case.scoring_url, case.empty_request, wrong_token)
        if not other_reply.is_unauthorized:
            outcome = "200" if other_reply.error is None else str(other_reply.error)
            raise fail(
                f"{description} is answered with {outcome}, not with 401 or 403",
                "compare the token, and refuse others with 401",
            )
    return "others are refused"


def bad_json(case: Case) -> str:
    """Check that invalid scoring requests are refused with 4xx."""
    if not case.has_series:
        raise skip("the source type is None: the framework sends nothing but an empty list")
    for description, body in (
        ("half a JSON document", b'{"data": ['),
        ("JSON of another shape", b'{"data": 5}'),
    ):
        reply = case.target.post(case.scoring_url, body, case.token)
        if reply.error is None:
            raise fail(
                f"{description} is answered with 200", "refuse it with 400 or 422; who sends it would never learn of it"
            )
        if reply.status is None or not 400 <= reply.status < 500:
            raise fail(f"{description}: {reply.error}", "refuse it with 400 or 422")
    return "refused with 4xx"


def _format_milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"
