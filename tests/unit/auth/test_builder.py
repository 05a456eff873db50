"""What an Access does whose token was refused."""

from __future__ import annotations

from typing import cast

import pytest

from dsf.api.tokenhosts import NO_HOSTS
from dsf.auth.builder import CredentialsBuilder
from dsf.auth.secrets import SecretError, SecretSource
from dsf.auth.tokencache import TokenCache
from dsf.errors import HttpError
from dsf.http.access import Access, TlsOptions


def test_a_renewal_that_fails_is_an_answer_of_401() -> None:
    builder = CredentialsBuilder(
        "https://a.test", 0.0, NO_HOSTS, cast("SecretSource", None), TokenCache(), TlsOptions()
    )
    builder.renewable = "old"

    def fail(token: str, deadline: float) -> Access:
        raise SecretError(f"no token after {token} within {deadline:g} s", "auth_failed")

    renew = builder.done(fail).renew
    assert renew is not None
    # What data is asked with knows no Secrets, least of all a plug-in.
    with pytest.raises(HttpError, match="no token after old within 3 s") as failed:
        renew(3.0)
    assert (failed.value.reason, failed.value.status, failed.value.retryable) == ("auth_failed", 401, False)
