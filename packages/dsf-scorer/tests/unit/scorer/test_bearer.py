"""Tokens from a file or the environment are compared as a whole and reloaded after changes."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from dsf.scorer import Bearer, ScorerError
from dsf.scorer.errors import RefusedError


def status(bearer: Bearer, header: str | None) -> int:
    try:
        bearer.check([] if header is None else [header])
    except RefusedError as error:
        return error.status
    return 200


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("Bearer secret", 200),
        ("bearer secret", 200),
        ("Bearer  secret ", 200),
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer ", 401),
        ("Bearer secre", 401),
        ("Bearer secret2", 401),
        ("Basic secret", 401),
        ("secret", 401),
    ],
)
def test_environment(monkeypatch: pytest.MonkeyPatch, header: str | None, expected: int) -> None:
    monkeypatch.setenv("TOKEN", "secret\n")
    assert status(Bearer(env="TOKEN"), header) == expected


def test_refusal_says_how_to_authenticate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    with pytest.raises(RefusedError) as caught:
        Bearer(env="TOKEN").check(["Bearer wrong"])
    assert caught.value.headers == {"WWW-Authenticate": "Bearer"}
    assert "secret" not in caught.value.detail
    assert "secret" not in repr(Bearer(env="TOKEN"))


def test_second_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    with pytest.raises(RefusedError, match="only one token"):
        Bearer(env="TOKEN").check(["Bearer secret", "Bearer secret"])


def test_file_with_several_tokens_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "token"
    bearer = Bearer(file=file)
    file.write_text("old\n\nnew\r\n")
    assert [status(bearer, f"Bearer {token}") for token in ("old", "new", "")] == [200, 200, 401]
    replacement = tmp_path / "other"
    replacement.write_text("new\n")
    os.replace(replacement, file)
    assert [status(bearer, f"Bearer {token}") for token in ("old", "new")] == [401, 200]


def test_tokens_that_are_not_ascii(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("sécret", encoding="utf-8")
    assert status(Bearer(file=file), "Bearer " + "sécret".encode().decode("latin-1")) == 200
    assert status(Bearer(file=file), "Bearer \u20ac") == 401


def test_missing_token_file_refuses_all_requests(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "token"
    bearer = Bearer(file=file)
    with caplog.at_level(logging.ERROR):
        assert status(bearer, "Bearer ") == 503
    assert str(file) in caplog.text
    with pytest.raises(ScorerError, match="no token"):
        bearer.require()
    file.write_text(" \n")
    assert status(bearer, "Bearer ") == 503
    file.write_text("secret")
    assert status(bearer, "Bearer secret") == 200
    bearer.require()
    file.unlink()
    assert status(bearer, "Bearer secret") == 503
    assert status(Bearer(env="DSF_TEST_NOT_SET"), "Bearer ") == 503
