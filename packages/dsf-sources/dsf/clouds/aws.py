"""Amazon's signature of each request (SigV4), for Managed Prometheus and for scoring APIs behind API Gateway.

Uses botocore (extra `aws`), which is loaded only when a scorer needs it: most agents never do.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from urllib.parse import quote, unquote_to_bytes, urlsplit

import requests
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest, AWSResponse
from botocore.credentials import Credentials

from dsf import http
from dsf.api.authentication import Aws
from dsf.api.types import AGENT_ACCOUNT
from dsf.api.urls import is_valid_url
from dsf.auth.builder import CredentialsBuilder
from dsf.auth.methods import parse_token
from dsf.auth.secrets import SecretError, Token
from dsf.clouds.cloud import Cloud
from dsf.errors import HttpError
from dsf.http.access import Access, is_unauthorized
from dsf.http.failures import describe_token_response
from dsf.text import MASK

_HASH = "X-Amz-Content-SHA256"


#: Session name in the logs of AWS.
_SESSION: Final = "dynamic-scoring-agent"
#: Set by EKS in pods whose ServiceAccount has an association: URL for credentials, and the file with the token for it.
_POD_URL: Final = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
_POD_TOKEN: Final = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"  # noqa: S105 - the name of a variable
#: EKS Pod Identity Agent on each node. AWS SDKs accept these addresses, loopback addresses, and no others.
_POD_AGENTS: Final = frozenset({"169.254.170.23", "fd00:ec2::23"})
_MAX_BYTES: Final = 64 * 1024
#: Part of AWS's responses with 403 to a session that has ended or was revoked.
_OUTDATED_CREDENTIALS_PATTERN: Final = re.compile(
    r"security token|ExpiredToken|UnrecognizedClient|InvalidClientTokenId"
)
#: Seconds by which this machine's clock may be late: AWS accepts signatures for five minutes.
_MAX_SKEW_SECONDS: Final = 300.0


class _Key(NamedTuple):
    id: str
    secret: str
    token: str | None
    #: The id as displayed.
    displayed_user: str


def add(method: Aws, builder: CredentialsBuilder) -> None:
    """Add a signature to each request."""
    if method.pod_identity:
        key = _fetch_pod_key(method, builder)
    else:
        key = _read_key(method, builder) if method.role_arn is None else _assume_role(method, method.role_arn, builder)
    signer = SigV4Auth(Credentials(key.id, key.secret, key.token), method.service, method.region)
    builder.sign = lambda request: _sign(request, signer)
    scope = f"{method.region}/{method.service}/aws4_request"
    builder.add_description(
        f"Authorization: AWS4-HMAC-SHA256 Credential={key.displayed_user}/{scope}, Signature={MASK}"
    )


def _read_key(method: Aws, builder: CredentialsBuilder) -> _Key:
    # Without a role, the model ensures that both are set.
    if method.secret_access_key is None or method.access_key_id is None:
        raise TypeError
    secret = builder.read_text(method.secret_access_key)
    user, displayed_user = builder.read_value(method.access_key_id)
    token = builder.read_text(method.session_token) if method.session_token is not None else None
    return _Key(user, secret, token, displayed_user)


def _assume_role(method: Aws, role: str, builder: CredentialsBuilder) -> _Key:
    """Return a temporary key for the agent's ServiceAccount token (IRSA)."""
    import botocore.session
    from botocore import UNSIGNED
    from botocore.config import Config

    def get() -> Token:
        # Ignores the environment: profiles, keys, and the address of the instance metadata.
        session = botocore.session.Session()
        session.set_config_variable("config_file", "/dev/null")
        session.set_config_variable("credentials_file", "/dev/null")
        config = Config(
            signature_version=UNSIGNED, retries={"total_max_attempts": 1}, ignore_configured_endpoint_urls=True
        )
        client = session.create_client("sts", region_name=method.region, endpoint_url=method.sts_url, config=config)
        cloud = Cloud("Amazon", builder, [client.meta.endpoint_url])

        def send(request: Any, **_: Any) -> AWSResponse:
            body = request.body.encode() if isinstance(request.body, str) else bytes(request.body or b"")
            # With this header AWS responds in JSON, but botocore parses XML.
            headers = {name: _decode_text(value) for name, value in request.headers.items()} | {"Accept": "text/xml"}
            response = cloud.send(request.method, request.url, headers, body)
            return AWSResponse(request.url, 200, {}, _Raw(response))

        client.meta.events.register("before-send.sts.AssumeRoleWithWebIdentity", send)
        credentials = client.assume_role_with_web_identity(
            RoleArn=role, RoleSessionName=_SESSION, WebIdentityToken=cloud.assertion(method.token_audience)
        )["Credentials"]
        return _make_token(credentials, "SessionToken", credentials["Expiration"])

    return _parse_temporary_key(Cloud("Amazon", builder, []).get((method,), get), builder)


def _fetch_pod_key(method: Aws, builder: CredentialsBuilder) -> _Key:
    """Return the key of the role associated with the agent's ServiceAccount (EKS Pod Identity)."""
    url, file = os.environ.get(_POD_URL, ""), os.environ.get(_POD_TOKEN, "")
    if not url or not file:
        raise SecretError(
            f"aws.podIdentity: EKS gave the agent's pod no identity ({_POD_URL} and {_POD_TOKEN} are not set): make an "
            f"association of ServiceAccount {AGENT_ACCOUNT} with a role, then restart the agent"
        )
    if not _is_of_eks(url):
        raise SecretError(f"aws.podIdentity: {_POD_URL} is not EKS's agent on this node", "secret_refused")
    cloud = Cloud("Amazon", builder, [])

    def get() -> Token:
        try:
            pod_token = Path(file).read_bytes()
        except OSError as error:
            raise SecretError(f"aws.podIdentity: the file of {_POD_TOKEN}: {error.strerror}") from None
        token = parse_token(pod_token, "EKS Pod Identity", _POD_TOKEN)
        access = Access((("Authorization", token),), is_direct=True, secrets=(token,))
        # Use a separate connection, because a pooled one may belong to a scorer that names the same address.
        try:
            response = http.probe(
                url, deadline=cloud.deadline, max_bytes=_MAX_BYTES, access=access, allows_link_local=True
            )
        except HttpError as error:
            text, retryable = str(error), error.retryable
        else:
            response_text = describe_token_response(response.status, response.content_type, response.body, [token])
            text, retryable = f"HTTP {response.status}: {response_text}", response.status >= 500
            if response.status == 200:
                credentials = json.loads(response.body)
                return _make_token(credentials, "Token", datetime.fromisoformat(credentials["Expiration"]))
        raise HttpError("auth_failed", f"no key from EKS Pod Identity: {text}", retryable=retryable)

    return _parse_temporary_key(cloud.get((method,), get), builder)


def _is_of_eks(url: str) -> bool:
    host = urlsplit(url).hostname or "" if is_valid_url(url) else ""
    try:
        return host in _POD_AGENTS or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _make_token(credentials: Any, session: str, ends: datetime) -> Token:
    value = json.dumps([credentials["AccessKeyId"], credentials["SecretAccessKey"], credentials[session]])
    remaining_seconds = (ends - datetime.now(UTC)).total_seconds()
    return Token(value, remaining_seconds - min(_MAX_SKEW_SECONDS, remaining_seconds / 2))


def _is_outdated(error: HttpError) -> bool:
    """True if AWS no longer accepts the session. The status is 403, as for a missing permission."""
    return is_unauthorized(error) or (
        error.status == HTTPStatus.FORBIDDEN and _OUTDATED_CREDENTIALS_PATTERN.search(str(error)) is not None
    )


def _parse_temporary_key(value: str, builder: CredentialsBuilder) -> _Key:
    builder.is_outdated = _is_outdated
    user, secret, token = json.loads(value)
    builder.hide(secret, token)
    return _Key(user, secret, token, user)


def _decode_text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


class _Raw:
    """The body of a response, as botocore reads it."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self) -> Iterable[bytes]:
        yield self._body


def _make_canonical(parameter: str) -> str:
    name, mark, value = parameter.replace("+", "%20").partition("=")
    return f"{quote(unquote_to_bytes(name), safe='~')}{mark}{quote(unquote_to_bytes(value), safe='~')}"


def _sign(request: requests.PreparedRequest, signer: SigV4Auth) -> None:
    # The encoding that AWS signs: all but unreserved characters are escaped, a space is %20.
    address, mark, query = (request.url or "").partition("?")
    request.url = f"{address}{mark}{'&'.join(map(_make_canonical, query.split('&')))}"
    # The digest also covers a streamed body. Headers that a proxy may change are not signed.
    digest = hashlib.sha256()
    body = request.body
    pieces = [body] if isinstance(body, bytes) else cast("Iterable[bytes]", body or ())
    for piece in pieces:
        digest.update(piece)
    signed_request = AWSRequest(request.method, request.url, headers={_HASH: digest.hexdigest()})
    signer.add_auth(signed_request)
    for name in ("Authorization", "X-Amz-Date", "X-Amz-Security-Token", _HASH):
        if (value := signed_request.headers.get(name)) is not None:
            request.headers[name] = value
