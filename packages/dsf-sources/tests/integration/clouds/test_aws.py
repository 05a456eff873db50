"""Amazon's signature, against a server that checks it by the published rules, independently of botocore."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl

import pytest

from dsf import http
from dsf.auth.authenticator import Authenticator
from tests.support.amazon import AWS, KEY, METHODS, compute_signature
from tests.support.authenticatedquery import GOOD, SourceAccessHarness
from tests.support.httpserver import Exchange, ScriptedServer, answer, with_clock_offset


def checks(exchange: Exchange) -> None:
    """Respond to a valid signature, and otherwise with 403 and the received headers."""
    authorization = exchange.request.headers.get("Authorization", "")
    credential_match = re.fullmatch(
        r"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/\d{8}/([\w-]+)/([\w-]+)/aws4_request, "
        r"SignedHeaders=([\w;-]+), Signature=([0-9a-f]{64})",
        authorization,
    )
    if (
        credential_match is None
        or compute_signature(exchange, credential_match[1], credential_match[2], credential_match[3].split(";"))
        != credential_match[4]
    ):
        exchange.send(f"SignatureDoesNotMatch: {authorization}".encode(), 403)
    elif {"host", "x-amz-date", "x-amz-content-sha256"} <= set(credential_match[3].split(";")):
        GOOD(exchange)
    else:
        exchange.send(b"too little is signed", 403)


@pytest.fixture
def amazon(bed: SourceAccessHarness) -> Iterator[ScriptedServer]:
    """A server that checks signatures, and the key."""
    bed.put("amazon", secret=KEY, other="an0ther-key", token="sessi0n-token")
    with ScriptedServer(checks) as running:
        yield running


def test_aws_query_is_signed(bed: SourceAccessHarness, amazon: ScriptedServer) -> None:
    assert bed.fetch(amazon.url, METHODS) == 1
    summary = bed.summary(amazon.url, METHODS).model_copy(
        update={"source_query": 'sum by (node) (rate(a{b=~"c+|d%", e!="ü&="}[5m])) + 1'}
    )
    access = Authenticator(bed.secrets).make_access(summary, "fetch", 0.0)
    response = http.get(
        summary.source_endpoint,
        params={"query": summary.source_query},
        access=access,
        deadline=time.monotonic() + 30,
        max_bytes=1000,
    )
    assert b"success" in response
    assert amazon.requests[-1].query["query"] == summary.source_query
    assert any("Credential=AKIDEXAMPLE/eu-west-1/aps/aws4_request, Signature=***" in line for line in bed.display_lines)


def test_aws_post_query_is_signed_with_its_body(bed: SourceAccessHarness, amazon: ScriptedServer) -> None:
    bed.method = "POST"
    assert bed.fetch(amazon.url, METHODS) == 1
    (request,) = amazon.requests
    assert (request.method, request.query) == ("POST", {})
    assert dict(parse_qsl(request.body.decode()))["query"] == "up"


def test_aws_query_in_the_url_is_signed_as_the_server_reads_it(
    bed: SourceAccessHarness, amazon: ScriptedServer
) -> None:
    access = Authenticator(bed.secrets).make_access(bed.summary(amazon.url, METHODS), "fetch", 0.0)
    url = f"{amazon.url}/prod/score?model=team/llama:8b@x,y&b=1+2&empty"
    assert b"success" in http.get(url, access=access, deadline=time.monotonic() + 30, max_bytes=1000)
    assert amazon.requests[-1].query == {"model": "team/llama:8b@x,y", "b": "1 2", "empty": ""}


def test_aws_body_in_pieces_is_signed(bed: SourceAccessHarness, amazon: ScriptedServer) -> None:
    class Pieces:
        def __len__(self) -> int:
            return 8

        def __iter__(self) -> Iterator[memoryview]:
            return iter((memoryview(b"1234"), memoryview(b"5678")))

    access = Authenticator(bed.secrets).make_access(bed.summary(amazon.url, METHODS), "fetch", 0.0)
    for body in (b"{}", Pieces()):
        http.post(f"{amazon.url}/a/b", body, access=access, deadline=time.monotonic() + 30, max_bytes=1000)


def test_aws_session_token_is_sent_and_a_wrong_key_is_refused(bed: SourceAccessHarness, amazon: ScriptedServer) -> None:
    session = {"aws": {**AWS, "sessionToken": {"name": "amazon", "key": "token"}, "service": "execute-api"}}
    assert bed.fetch(amazon.url, session) == 1
    assert amazon.requests[-1].headers["X-Amz-Security-Token"] == "sessi0n-token"
    error = bed.failure(amazon.url, {"aws": {**AWS, "secretAccessKey": {"name": "amazon", "key": "other"}}})
    assert error.reason == "unauthorized"
    assert "SignatureDoesNotMatch" in error.message
    assert "an0ther-key" not in error.message


#: As Amazon has it, in seconds.
WINDOW = 300


@pytest.mark.parametrize(("ahead", "direction"), [(3600, "ahead of"), (-3600, "behind")])
def test_aws_signature_outside_the_time_window_reports_the_clock_difference(
    bed: SourceAccessHarness, amazon: ScriptedServer, ahead: int, direction: str
) -> None:
    """The signature is good, and of a time that Amazon's clock does not take."""

    def in_time(exchange: Exchange) -> None:
        now = datetime.now(UTC) + timedelta(seconds=ahead)
        signed = datetime.strptime(exchange.request.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        if abs((now - signed).total_seconds()) <= WINDOW:
            checks(exchange)
            return
        text = f"Signature expired: {signed:%Y%m%dT%H%M%SZ} is not within 5 min. of {now:%Y%m%dT%H%M%SZ}"
        answer({"message": text}, 403)(exchange)

    amazon.script(with_clock_offset(ahead, in_time))
    error = bed.failure(amazon.url, METHODS)
    assert error.reason == "unauthorized"
    assert "Signature expired" in error.message
    assert f"s {direction} that of who asks, so tokens and signatures may not count" in error.message
    assert KEY not in error.message
    # A wrong key is not reported as a clock difference.
    amazon.script(checks)
    error = bed.failure(amazon.url, {"aws": {**AWS, "secretAccessKey": {"name": "amazon", "key": "other"}}})
    assert "that of who asks" not in error.message
