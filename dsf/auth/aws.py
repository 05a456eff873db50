"""Amazon's signature of each request (SigV4), for Managed Prometheus and for scoring APIs behind API Gateway.

Through botocore, which comes with the extra `aws` and is loaded when a scorer wants it: most agents never do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import requests

from dsf.api.authentication import Aws
from dsf.auth.cloud import Cloud, missing
from dsf.auth.draft import Draft
from dsf.auth.tokencache import Token
from dsf.text import MASK

if TYPE_CHECKING:
    from botocore.auth import SigV4Auth

_HASH = "X-Amz-Content-SHA256"


#: Who the requests are of, in Amazon's own logs.
_SESSION: Final = "dynamic-scoring-agent"


class _Key(NamedTuple):
    id: str
    secret: str
    token: str | None
    #: What people see of the id.
    shown: str


def add(method: Aws, draft: Draft) -> None:
    """Sign each request."""
    try:
        from botocore.auth import SigV4Auth
        from botocore.credentials import Credentials
    except ModuleNotFoundError:
        raise missing("aws", "aws") from None
    key = _of_secrets(method, draft) if method.role_arn is None else _of_role(method, method.role_arn, draft)
    signer = SigV4Auth(Credentials(key.id, key.secret, key.token), method.service, method.region)
    draft.sign = lambda request: _sign(request, signer)
    scope = f"{method.region}/{method.service}/aws4_request"
    draft.shows(f"Authorization: AWS4-HMAC-SHA256 Credential={key.shown}/{scope}, Signature={MASK}")


def _of_secrets(method: Aws, draft: Draft) -> _Key:
    # The model has both where it has no role.
    if method.secret_access_key is None or method.access_key_id is None:
        raise TypeError
    secret = draft.text(method.secret_access_key)
    user, shown = draft.value(method.access_key_id)
    token = draft.text(method.session_token) if method.session_token is not None else None
    return _Key(user, secret, token, shown)


def _of_role(method: Aws, role: str, draft: Draft) -> _Key:
    """A temporary key for a token of the agent's ServiceAccount (IRSA)."""
    import botocore.session
    from botocore import UNSIGNED
    from botocore.awsrequest import AWSResponse
    from botocore.config import Config

    def get() -> Token:
        # Nothing of the environment: neither a profile, nor a key, nor the address of an instance's metadata.
        session = botocore.session.Session()
        session.set_config_variable("config_file", "/dev/null")
        session.set_config_variable("credentials_file", "/dev/null")
        config = Config(
            signature_version=UNSIGNED, retries={"total_max_attempts": 1}, ignore_configured_endpoint_urls=True
        )
        client = session.create_client("sts", region_name=method.region, endpoint_url=method.sts_url, config=config)
        cloud = Cloud("Amazon", draft, [client.meta.endpoint_url])

        def send(request: Any, **_: Any) -> AWSResponse:
            body = request.body.encode() if isinstance(request.body, str) else bytes(request.body or b"")
            headers = {name: _text(value) for name, value in request.headers.items()}
            answer = cloud.send(request.method, request.url, headers, body)
            return AWSResponse(request.url, 200, {}, _Raw(answer))

        client.meta.events.register("before-send.sts.AssumeRoleWithWebIdentity", send)
        found = client.assume_role_with_web_identity(
            RoleArn=role, RoleSessionName=_SESSION, WebIdentityToken=cloud.assertion(method.token_audience)
        )["Credentials"]
        value = json.dumps([found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"]])
        return Token(value, (found["Expiration"] - datetime.now(UTC)).total_seconds())

    value = Cloud("Amazon", draft, []).get((method,), get)
    user, secret, token = json.loads(value)
    draft.hide(secret, token)
    return _Key(user, secret, token, user)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


class _Raw:
    """The body of an answer, as botocore reads it."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self) -> Iterable[bytes]:
        yield self._body


def _sign(request: requests.PreparedRequest, signer: SigV4Auth) -> None:
    from botocore.awsrequest import AWSRequest

    # A blank is %20 to Amazon; a plus that is meant is %2B in both.
    address, mark, query = (request.url or "").partition("?")
    request.url = f"{address}{mark}{query.replace('+', '%20')}"
    # Of a body that is not in memory as a whole, too. No header that a proxy may change is signed.
    digest = hashlib.sha256()
    body = request.body
    pieces = [body] if isinstance(body, bytes) else cast("Iterable[bytes]", body or ())
    for piece in pieces:
        digest.update(piece)
    signed = AWSRequest(request.method, request.url, headers={_HASH: digest.hexdigest()})
    signer.add_auth(signed)
    for name in ("Authorization", "X-Amz-Date", "X-Amz-Security-Token", _HASH):
        if (value := signed.headers.get(name)) is not None:
            request.headers[name] = value
