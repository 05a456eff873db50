"""Amazon's signature of each request (SigV4), for Managed Prometheus and for scoring APIs behind API Gateway.

Through botocore, which comes with the extra `aws` and is loaded when a scorer wants it: most agents never do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import requests

from dsf.api.authentication import Aws
from dsf.auth.draft import Draft
from dsf.auth.secrets import SecretError
from dsf.text import MASK

if TYPE_CHECKING:
    from botocore.auth import SigV4Auth

_HASH = "X-Amz-Content-SHA256"


def add(method: Aws, draft: Draft) -> None:
    """Sign each request."""
    try:
        from botocore.auth import SigV4Auth
        from botocore.credentials import Credentials
    except ModuleNotFoundError:
        raise SecretError(
            "aws needs the extra `aws` in this agent: pip install 'dynamic-scoring-framework[aws]'", "auth_unsupported"
        ) from None
    secret = draft.text(method.secret_access_key)
    user, shown = draft.value(method.access_key_id)
    token = draft.text(method.session_token) if method.session_token is not None else None
    signer = SigV4Auth(Credentials(user, secret, token), method.service, method.region)
    draft.sign = lambda request: _sign(request, signer)
    scope = f"{method.region}/{method.service}/aws4_request"
    draft.shows(f"Authorization: AWS4-HMAC-SHA256 Credential={shown}/{scope}, Signature={MASK}")


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
