"""Rendering of values, links and texts from outside."""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dsf.settings import Settings
from dsf.web import rendering
from dsf.web.rendering import (
    compile_templates,
    format_duration,
    get_advice,
    get_environment,
    insert_ages,
    make_link,
    render,
)


def test_all_templates_compile() -> None:
    compile_templates()


def test_ages_are_put_in_last() -> None:
    html = '<time datetime="2026-01-01T00:00:00Z" data-age></time>'
    assert insert_ages(html, 1767225600 + 75).endswith(">75 s ago</time>")
    time_element = '<time datetime="2026-01-01T00:00:00Z" data-until></time>'
    assert insert_ages(time_element, 1767225600 - 200).endswith(">in 3 min</time>")
    assert insert_ages(time_element, 1767225600 + 1).endswith(">now</time>")
    assert insert_ages('<html lang="en">', 1767225600) == '<html lang="en" data-now="2026-01-01T00:00:00Z">'


@pytest.mark.parametrize(
    ("seconds", "text"), [(-3, "0 s"), (99, "99 s"), (100, "1 min"), (7500, "2 h 5 min"), (200_000, "2 d")]
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_timestamp_of_another_day_includes_its_date() -> None:
    clock = get_environment().filters["clock"]
    assert clock(0.0) == '<time datetime="1970-01-01T00:00:00Z">1970-01-01 00:00:00</time>'
    now = time.time()
    assert re.fullmatch(r'<time datetime="[^"]+">(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d</time>', clock(now))


def test_links() -> None:
    assert make_link("/p", "/find", q="a b&c", page=None) == "/p/find?q=a+b%26c"


def test_template_values_are_escaped() -> None:
    html = render("error.html", "", _base(title="<script>x</script>", text='"><img src=x onerror=y>', again=False))
    assert "<script>x" not in html
    assert "<img" not in html


def test_non_printable_characters_of_template_values_are_escaped() -> None:
    html = render("error.html", "", _base(title="a\x1b[31mb", text="c\u202ed\ne", again=False))
    assert not {"\x1b", "\u202e"} & set(html)
    assert r"a\x1b[31mb" in html
    assert "c\\u202ed\ne" in html


@pytest.mark.parametrize(("every", "seconds"), [(0, None), (1, 2), (3, 15), (10, 50)])
def test_pages_choose_how_often_they_are_read_again(every: int, seconds: int | None) -> None:
    html = render("page.html", "", _base(title="t", every=every, content="", acts={}, names={}))
    assert re.findall(r'"refresh" content="(.*?)"', html) == ([] if seconds is None else [str(seconds)])
    assert re.findall(r'data-every="(.*?)"', html) == ([] if seconds is None else [str(every)])


def _base(**fields: object) -> dict[str, object]:
    return {
        "assets": "a",
        "version": "1",
        "options": Settings(),
        "q": "",
        "path": "/",
        "hub": "",
        "alert": "",
        "offered": [],
        "leave": "",
        "caller": None,
        **fields,
    }


def test_advice_is_words() -> None:
    assert get_advice("bad_query") == "correct the query"
    assert "](" not in get_advice("secret_refused")
    assert get_advice("no such reason") == ""


#: Objects: Jinja reads `items` of a dictionary as its method.
ITEMS = SimpleNamespace(items=[("a", 1)], results=1)
NO_ITEMS = SimpleNamespace(items=[], results=0)


@pytest.mark.parametrize(
    ("state", "score", "expired", "in_use"),
    [
        ("failing", ITEMS, False, True),
        ("failing", ITEMS, True, False),
        ("failing", NO_ITEMS, False, False),
        ("failing", None, False, False),
        ("empty", NO_ITEMS, False, False),
        ("ok", ITEMS, False, False),
    ],
)
def test_pair_without_items_is_never_in_use(
    state: str, score: SimpleNamespace | None, expired: bool, in_use: bool
) -> None:
    row = {"state": {"name": state}, "score": score, "expired": expired}
    assert ("still in use" in _macro("still_in_use", row)) is in_use


@pytest.mark.parametrize(
    ("states", "text"),
    [
        ({"empty": 2}, "took the place of older scores"),
        ({"empty": 1, "failing": 1}, "where a cluster has one"),
        ({"failing": 2}, "where a cluster has one"),
        ({"paused": 2}, "where a cluster has one"),
    ],
)
def test_scorer_without_scores_mentions_older_ones_only_if_possible(states: dict[str, int], text: str) -> None:
    sentence = _macro("no_fresh_score", {"pairs": 2, "states": {"empty": 0, "paused": 0, **states}})
    assert text in sentence
    assert ("in use" in sentence) is ("empty" not in states or states["empty"] < 2)


def test_pages_use_only_the_sentences_of_the_macros() -> None:
    """The two sentences are in the macros that the tests above check."""
    folder = Path(rendering.__file__).parent / "templates"
    other_templates = [file.name for file in folder.glob("*.html") if file.name != "macros.html"]
    assert {"pair.html", "scorer.html"} <= set(other_templates)
    assert [name for name in other_templates if "in use" in (folder / name).read_text(encoding="utf-8")] == []


def _macro(name: str, argument: object) -> str:
    return str(getattr(get_environment().get_template("macros.html").module, name)(argument))


def test_dark_scheme_changes_only_colours() -> None:
    """Tests in a browser can therefore check for hidden or small elements in one scheme only."""
    style = Path(rendering.__file__).with_name("static").joinpath("page.css").read_text(encoding="utf-8")
    [dark] = re.findall(r"@media [^{]*prefers-color-scheme: dark\) \{\n  :root \{\n(.*?)\n  \}\n\}", style, re.DOTALL)
    assert style.count("prefers-color-scheme") == 1
    names = [line.partition(":")[0].strip() for line in dark.split(";") if line.strip()]
    assert len(names) > 20
    assert [name for name in names if not name.startswith("--")] == []
