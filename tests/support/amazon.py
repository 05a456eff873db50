"""Computes Amazon's request signature by the published rules, independently of botocore."""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import parse_qsl, quote, urlsplit

from tests.support.httpserver import Exchange

KEY = "s3cret/of+amazon"
AWS = {
    "region": "eu-west-1",
    "accessKeyID": {"value": "AKIDEXAMPLE"},
    "secretAccessKey": {"name": "amazon", "key": "secret"},
}
METHODS = {"aws": AWS}


def _make_canonical_query(query: str) -> str:
    """Return the query's names and values, decoded, sorted, and encoded again except for unreserved characters."""
    pairs = parse_qsl(query, keep_blank_values=True)
    return "&".join(sorted(f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in pairs))


def compute_signature(exchange: Exchange, region: str, service: str, signed: list[str]) -> str:
    """Return the signature that this request must have."""
    request = exchange.request
    raw = urlsplit(exchange.http.path)
    headers = {name.lower(): value.strip() for name, value in request.headers.items()}
    canonical = "\n".join(
        [
            *(request.method, raw.path, _make_canonical_query(raw.query)),
            *(f"{name}:{headers[name]}" for name in signed),
            *("", ";".join(signed), hashlib.sha256(request.body).hexdigest()),
        ]
    )
    date = headers["x-amz-date"]
    scope = f"{date[:8]}/{region}/{service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{KEY}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
