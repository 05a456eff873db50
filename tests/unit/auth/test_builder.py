"""Renewal of a refused token by Access, and proxies that see secrets."""

from __future__ import annotations

from typing import cast

import pytest

from dsf.api.fieldtypes import SecretKeyRef
from dsf.api.urls import NO_HOSTS
from dsf.auth.builder import CredentialsBuilder
from dsf.auth.secrets import SecretError, SecretSource, Use
from dsf.auth.tokencache import TokenCache
from dsf.errors import HttpError
from dsf.http.access import Access, TlsOptions


def test_failed_renewal_is_reported_as_401() -> None:
    builder = CredentialsBuilder(
        "https://a.test", 0.0, NO_HOSTS, cast("SecretSource", None), TokenCache(), TlsOptions()
    )
    builder.renewable_token = "old"

    def fail(token: str, deadline: float) -> Access:
        raise SecretError(f"no token after {token} within {deadline:g} s", "auth_failed")

    renew = builder.build(fail).renew
    assert renew is not None
    # Code that queries data, such as a plug-in, handles HttpError but not SecretError.
    with pytest.raises(HttpError, match="no token after old within 3 s") as raised:
        renew(3.0)
    assert (raised.value.reason, raised.value.status, raised.value.retryable) == ("auth_failed", 401, False)


class Uses:
    """A store of Secrets that records the servers that would see them."""

    def __init__(self) -> None:
        self.urls: list[tuple[str, ...]] = []

    def get_secret(self, name: str, key: str, use: Use) -> bytes:
        self.urls.append(tuple(use.urls))
        return b"value"


@pytest.mark.parametrize(
    ("url", "verify", "is_proxied"),
    [("https://a.test", True, False), ("https://a.test", False, True), ("http://a.test", True, True)],
)
def test_proxy_that_sees_a_secret_must_be_allowed(url: str, verify: bool, is_proxied: bool) -> None:
    uses, proxy = Uses(), "http://proxy.test:3128"
    builder = CredentialsBuilder(
        url, 0.0, NO_HOSTS, cast("SecretSource", uses), TokenCache(), TlsOptions(verify=verify), proxy=proxy
    )
    ref = SecretKeyRef(name="s", key="k")
    assert builder.read_bytes(ref) == b"value"
    # The key of a client certificate is not sent.
    builder.read_bytes(ref, is_sent=False)
    assert uses.urls == [(url, proxy) if is_proxied else (url,), (url,)]
