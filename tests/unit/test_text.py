"""Text from outside: secrets out, nothing that steers a terminal in."""

from __future__ import annotations

import base64
import html
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf.text import MASK, WITHHELD, cleaned, listed, masked

TOKEN = "canary-token/4f1e+Zq=="


@given(st.text(max_size=300), st.integers(1, 100))
def test_cleaned_text_is_one_printable_line(text: str, limit: int) -> None:
    found = cleaned(text, limit)
    assert found.isprintable()
    assert len(found) <= limit
    assert cleaned(found, limit) == found.strip()


@pytest.mark.parametrize(
    ("names", "text"), [([], ""), (["a", "b", "c"], "a, b, c"), (["a", "b", "c", "d", "e"], "a, b, c and 2 more")]
)
def test_of_many_names_the_first_are_listed(names: list[str], text: str) -> None:
    assert listed(names, 3) == text


@pytest.mark.parametrize("code", [0x00, 0x07, 0x1B, 0x7F, 0x85, 0x9B, 0x200B, 0x2028, 0x202E, 0x2066, 0xD800, 0xFEFF])
def test_what_cannot_be_seen_becomes_a_blank(code: int) -> None:
    assert cleaned(f"a{chr(code)}b", 10) == "a b"


def test_letters_of_all_writings_stay() -> None:
    assert cleaned("Größe 点数 ✓", 20) == "Größe 点数 ✓"


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
def test_a_token_is_not_shown_however_it_is_written(text: str) -> None:
    found = masked(text, None, "another-token", TOKEN)
    assert TOKEN[:-3] not in found
    assert found == WITHHELD or MASK in found


@given(st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=40), st.text())
def test_no_token_survives(token: str, around: str) -> None:
    for written in (token, quote(token, safe=""), json.dumps(token)):
        assert token not in cleaned(masked(f"{around}{written}{around}", token), 1000) or token in MASK + WITHHELD


def test_text_without_a_token_stays() -> None:
    assert masked("1:4: parse error: %41 &amp; \\u0041", TOKEN, None) == "1:4: parse error: %41 &amp; \\u0041"


@given(
    st.binary(max_size=10), st.binary(max_size=10), st.booleans(), st.text(st.characters(min_codepoint=33), min_size=8)
)
def test_no_base64_of_a_token_is_shown(before: bytes, after: bytes, is_for_urls: bool, token: str) -> None:
    written = before + token.encode(errors="surrogatepass") + after
    text = (base64.urlsafe_b64encode if is_for_urls else base64.b64encode)(written).decode()
    assert text not in masked(f"you sent Basic {text}: go away", token)


def test_base64_of_something_else_is_shown() -> None:
    text = base64.b64encode(b"nothing that is a secret at all").decode()
    assert masked(text, TOKEN, "short") == text
