"""Text from outside: secrets and control characters are removed."""

from __future__ import annotations

import base64
import html
import json
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dsf.text import MASK, WITHHELD, clean, has_user, list_names, mask_secrets, shorten_url, shorten_urls

TOKEN = "canary-token/4f1e+Zq=="


@given(st.text(max_size=300), st.integers(1, 100))
def test_cleaned_text_is_one_printable_line(text: str, limit: int) -> None:
    cleaned_text = clean(text, limit)
    assert cleaned_text.isprintable()
    assert len(cleaned_text) <= limit
    assert clean(cleaned_text, limit) == cleaned_text.strip()


@pytest.mark.parametrize(
    ("names", "text"), [([], ""), (["a", "b", "c"], "a, b, c"), (["a", "b", "c", "d", "e"], "a, b, c and 2 more")]
)
def test_long_list_of_names_is_truncated(names: list[str], text: str) -> None:
    assert list_names(names, 3) == text


@pytest.mark.parametrize("code", [0x00, 0x07, 0x1B, 0x7F, 0x85, 0x9B, 0x200B, 0x2028, 0x202E, 0x2066, 0xD800, 0xFEFF])
def test_invisible_character_becomes_a_blank(code: int) -> None:
    assert clean(f"a{chr(code)}b", 10) == "a b"


def test_letters_of_all_writings_stay() -> None:
    assert clean("Größe 点数 ✓", 20) == "Größe 点数 ✓"


@pytest.mark.parametrize(
    "text",
    [
        f"you sent {TOKEN}, go away",
        json.dumps({"error": f"bad header Bearer {TOKEN}"}),
        "".join(f"\\u{ord(char):04x}" for char in TOKEN),
        "".join(f"\\x{ord(char):02x}" for char in TOKEN),
        f"/path?token={quote(TOKEN, safe='')}",
        "".join(f"&#{ord(char)};" for char in TOKEN),
        html.escape(TOKEN),
        json.dumps(TOKEN).replace("/", "\\/"),
        "\u200b".join(TOKEN),
        " ".join(TOKEN),
        f"it was cut here: {TOKEN[:-3]}",
    ],
)
def test_token_is_masked_in_any_spelling(text: str) -> None:
    masked_text = mask_secrets(text, None, "another-token", TOKEN)
    assert TOKEN[:-3] not in masked_text
    assert masked_text == WITHHELD or MASK in masked_text


@given(st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=40), st.text())
def test_no_token_survives(token: str, around: str) -> None:
    for token_spelling in (token, quote(token, safe=""), json.dumps(token)):
        assert (
            token not in clean(mask_secrets(f"{around}{token_spelling}{around}", token), 1000)
            or token in MASK + WITHHELD
        )


def test_text_without_a_token_stays() -> None:
    assert mask_secrets("1:4: parse error: %41 &amp; \\u0041", TOKEN, None) == "1:4: parse error: %41 &amp; \\u0041"


@given(
    st.binary(max_size=10), st.binary(max_size=10), st.booleans(), st.text(st.characters(min_codepoint=33), min_size=8)
)
def test_no_base64_of_a_token_is_shown(before: bytes, after: bytes, is_for_urls: bool, token: str) -> None:
    content = before + token.encode(errors="surrogatepass") + after
    text = (base64.urlsafe_b64encode if is_for_urls else base64.b64encode)(content).decode()
    assert text not in mask_secrets(f"you sent Basic {text}: go away", token)


def test_base64_of_something_else_is_shown() -> None:
    text = base64.b64encode(b"nothing that is a secret at all").decode()
    assert mask_secrets(text, TOKEN, "short") == text


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://user:canary@host:9090/path?q", "http://***@host:9090/path"),
        ("https://canary@host", "https://***@host"),
        ("http://user:can/ary@host/x", "http://***@host/x"),
        ("http://user:can?ary#x@host/x", "http://***@host/x"),
        ("http://user:a@canary@host", "http://***@host"),
        ("http://user:a://canary@host", "http://***@host"),
        ("http://user://canary@host", "http://***@host"),
        ("http://user:canary%40host", "http://***@host"),
        ("http://user:canary\uff20host", "http://***@host"),
        ("http://good\\canary@evil", "http://***@evil"),
        ("user:canary@host:9090", "***@host:9090"),
        ("//user:canary@host", "***@host"),
        ("ftp://user:can ary@host", "ftp://***@host"),
        ("http://user:canary@", "http://***@"),
    ],
)
def test_shown_url_has_no_user_information(url: str, text: str) -> None:
    assert shorten_url(url) == text
    assert has_user(url)
    assert shorten_urls(f"why: '{url}' is bad").startswith("why: ")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://host:9090/path?token=canary#x", "http://host:9090/path"),
        ("http://[::1]:80/x", "http://[::1]:80/x"),
        ("http://${label:example.com/region}.prom:9090/a", "http://${label:example.com/region}.prom:9090/a"),
        ("http://host/?mail=a@b", "http://***@b"),
        ("http://host:9090/a@b", "http://***@b"),
        ("prometheus:9090", "prometheus:9090"),
        ("http://bücher.example", "http://bücher.example"),
        ("", ""),
    ],
)
def test_shown_url_without_user_information_is_the_url_before_its_query(url: str, text: str) -> None:
    assert shorten_url(url) == text
    assert not has_user(url)


_PASSWORDS = st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=0x24F), min_size=1, max_size=20)


@example("://")
@given(_PASSWORDS)
def test_no_password_of_a_url_survives(password: str) -> None:
    # Markers on both sides distinguish the password from parts of the host and the mask.
    secret = f"qz{password}zq"
    for url in (f"http://user:{secret}@host:9090/path", f"http://{secret}@host", f"user:{secret}@host"):
        visible_url = shorten_url(url)
        assert "qz" not in visible_url
        assert "zq" not in visible_url
        assert "qz" not in shorten_urls(f"mistake: {url!r}") or "://" not in url


def test_urls_in_a_text_are_shown_without_secrets() -> None:
    text = "'http://user:canary@host/x?y' is not one of http://a/b?token=canary, http://c"
    assert "canary" not in shorten_urls(text)
    assert shorten_urls("GET http://a/b?token=canary failed") == "GET http://a/b failed"
    assert shorten_urls("mail a@b") == "mail a@b"
