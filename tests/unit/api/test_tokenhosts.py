"""Lists of servers that may receive a token."""

from __future__ import annotations

import pytest

from dsf.api.urls import TokenHosts


@pytest.mark.parametrize(
    ("text", "url", "allowed"),
    [
        ("h.example", "http://h.example/x", True),
        ("h.example", "https://H.EXAMPLE:8443/x", True),
        ("h.example", "http://h.example.evil.example/", False),
        ("h.example", "http://evil.example/h.example", False),
        ("h.example", "http://sub.h.example/", False),
        ("h.example", "http://h.example@evil.example/", False),
        ("h.example:81", "https://h.example:81/x", True),
        ("h.example:81", "http://h.example/x", False),
        ("h.example:80", "http://h.example/x", True),
        ("https://h.example", "https://h.example:443/x", True),
        ("https://h.example", "http://h.example/x", False),
        ("https://h.example", "https://h.example:444/x", False),
        ("[::1]", "http://[::1]:9/x", True),
        ("[::1]:9", "http://[::1]:9/x", True),
        ("[::1]:9", "http://[::1]:8/x", False),
        (" a.example ,\tb.example\n", "http://b.example/", True),
        ("", "http://h.example/", False),
        ("h.example", "", False),
        ("h.example", "http\u017f://h.example/", False),
    ],
)
def test_token_host_list_allows_only_its_servers(text: str, url: str, *, allowed: bool) -> None:
    assert TokenHosts.split(text).allow(url) is allowed


@pytest.mark.parametrize(
    "entry", ["*", "h/x", "h:0", "http://", "ftp://h", "https://u@h", "h?x", "https://h/", "\u212a.example", "::1"]
)
def test_invalid_server_entry_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="is not a server of the form"):
        TokenHosts([entry])
