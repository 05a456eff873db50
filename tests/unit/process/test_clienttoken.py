"""The token that clients send: its length, and how many wrong ones a client may try."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsf.errors import AccessError, SettingsError
from dsf.process.clienttoken import MAX_BURST, SECONDS_PER_TOKEN, GuessLimit, TokenFile

TOKEN = "the-token-of-all-clients"


class MovedClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def refuse(tokens: TokenFile, token: str, client: str) -> int:
    with pytest.raises(AccessError) as refusal:
        tokens.check(token, client)
    return refusal.value.status


def test_token_of_a_client_with_too_many_wrong_ones_is_not_compared(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    tokens = TokenFile(file)
    for number in range(MAX_BURST):
        assert refuse(tokens, f"{number}", "2001:db8:1:2::5") == 401
    for address in ("2001:db8:1:2::5", "2001:db8:1:2:ffff::6"):
        assert refuse(tokens, "wrong", address) == 429
        assert refuse(tokens, TOKEN, address) == 429
    for client in ("10.0.0.2", "2001:db8:1:3::5", "session 5a1f"):
        tokens.check(TOKEN, client)


def test_client_may_try_again_after_a_while() -> None:
    clock = MovedClock()
    limit = GuessLimit(clock)
    for _ in range(MAX_BURST):
        limit.require_attempt("10.0.0.1")
        limit.record_wrong_token("10.0.0.1")
    with pytest.raises(AccessError, match=r"try again in [67] s"):
        limit.require_attempt("10.0.0.1")
    for _ in range(3):
        clock.seconds += SECONDS_PER_TOKEN
        limit.require_attempt("10.0.0.1")
        limit.record_wrong_token("10.0.0.1")
        with pytest.raises(AccessError):
            limit.require_attempt("10.0.0.1")
    clock.seconds += MAX_BURST * SECONDS_PER_TOKEN
    for _ in range(MAX_BURST):
        limit.require_attempt("10.0.0.1")
        limit.record_wrong_token("10.0.0.1")
    with pytest.raises(AccessError):
        limit.require_attempt("10.0.0.1")


def test_number_of_remembered_clients_is_bounded() -> None:
    limit = GuessLimit()
    for number in range(10_500):
        limit.record_wrong_token(f"2001:db8:{number:x}::1")
    assert len(limit._full_burst_at) == 10_000


@pytest.mark.parametrize("text", ["", "4711", "x" * 15, " " * 20])
def test_short_token_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(SettingsError, match="at least 16"):
        TokenFile(file).check(text, "10.0.0.1")
