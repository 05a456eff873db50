"""How values, links and texts of others are written."""

from __future__ import annotations

import pytest

from dsf.web.rendering import advice, duration, link, prepare, render, with_ages


def test_all_templates_compile() -> None:
    prepare()


def test_ages_are_put_in_last() -> None:
    html = '<time datetime="2026-01-01T00:00:00Z" data-age></time>'
    assert with_ages(html, 1767225600 + 75).endswith(">75 s ago</time>")
    until = '<time datetime="2026-01-01T00:00:00Z" data-until></time>'
    assert with_ages(until, 1767225600 - 200).endswith(">in 3 min</time>")
    assert with_ages(until, 1767225600 + 1).endswith(">now</time>")


@pytest.mark.parametrize(
    ("seconds", "text"), [(-3, "0 s"), (99, "99 s"), (100, "1 min"), (7500, "2 h 5 min"), (200_000, "2 d")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_links() -> None:
    assert link("/p", "/find", q="a b&c", page=None) == "/p/find?q=a+b%26c"


def test_what_is_put_in_is_escaped() -> None:
    html = render("error.html", "", _base(title="<script>x</script>", text='"><img src=x onerror=y>', again=False))
    assert "<script>x" not in html
    assert "<img" not in html


def _base(**more: object) -> dict[str, object]:
    from dsf.web.site import Options

    return {
        "assets": "a",
        "version": "1",
        "options": Options(),
        "q": "",
        "path": "/",
        "leave": "",
        "caller": None,
        **more,
    }


def test_advice_is_words() -> None:
    assert advice("bad_query") == "correct the query"
    assert "](" not in advice("secret_refused")
    assert advice("no such reason") == ""
