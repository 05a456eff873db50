"""Renders views as HTML.

A page depends on the day of rendering alone: times are in the attribute `datetime`, and ages are inserted last.
Therefore two renderings are equal if nothing has changed. If they are not, a browser replaces only what differs.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup

from dsf.api.scorerule import describe_hold_rule
from dsf.process import hubclock
from dsf.reasons import DescribedReason, EmptyReason, FailureReason, RefusalReason, SkipReason, plain_text
from dsf.text import shown_url
from dsf.web import charts
from dsf.web.pages import plugins
from dsf.web.search import quote_term
from dsf.web.states import STATES

#: By name; failures go before others of the same name.
_REASONS: Final[Mapping[str, DescribedReason]] = {
    member.value: member for kind in (EmptyReason, RefusalReason, SkipReason, FailureReason) for member in kind
}
_AGE: Final = re.compile(r'(<time datetime="([^"]+)" data-(age|until)>)(</time>)')


def with_ages(html: str, now: float | None = None) -> str:
    """Return the HTML with ages, for a browser without JavaScript."""
    at = hubclock.now() if now is None else now

    def put(match: re.Match[str]) -> str:
        ahead = datetime.fromisoformat(match[2]).timestamp() - at
        text = f"{duration(-ahead)} ago" if match[3] == "age" else f"in {duration(ahead)}" if ahead >= 1 else "now"
        return f"{match[1]}{text}{match[4]}"

    return _AGE.sub(put, html)


def digest(html: str) -> str:
    """Digest of a rendering."""
    return hashlib.sha256(html.encode()).hexdigest()[:16]


def duration(seconds: float) -> str:
    """`12 s`, `3 min`, `2 h 5 min`, `4 d`."""
    whole = max(0, int(seconds))
    if whole < 100:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d"


def stamp(at: float | datetime | None) -> str:
    """Return a time as the attribute `datetime`."""
    if at is None:
        return ""
    moment = at if isinstance(at, datetime) else datetime.fromtimestamp(max(0.0, at), UTC)
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _time(at: float | datetime | None, kind: str = "age") -> Markup:
    """Return a time element; the browser, or `with_ages`, fills in the age."""
    if at is None:
        return Markup('<span class="none">-</span>')
    return Markup('<time datetime="{}" data-{}></time>').format(stamp(at), kind)


def _clock(at: float | datetime | None) -> Markup:
    """Return a time of day in UTC, with the date if it is not today's."""
    if at is None:
        return Markup('<span class="none">-</span>')
    text = stamp(at)
    day, clock = text[:10], text[11:19]
    clock_text = clock if day == stamp(hubclock.now())[:10] else f"{day} {clock}"
    return Markup('<time datetime="{}">{}</time>').format(text, clock_text)


def _milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def rough(seconds: float) -> str:
    """Return a coarse duration that does not change each second: `10 s`, `20 s`, `1 min`."""
    steps = (1, 2, 5, 10, 15, 20, 30, 45, 60, 90)
    step = next((step for step in steps if seconds <= step), None)
    return f"{step} s" if step is not None else duration(seconds)


def advice(reason: str) -> str:
    """Advice for a reason; empty for an unknown one."""
    return plain_text(_REASONS[reason].advice) if reason in _REASONS else ""


def meaning(reason: str) -> str:
    """Meaning of a reason; empty for an unknown one."""
    return plain_text(_REASONS[reason].meaning) if reason in _REASONS else ""


@functools.cache
def environment() -> jinja2.Environment:
    """Return the templates. All values are escaped, and an undefined name is an error."""
    plugin_templates = {name: plugin.templates for name, plugin in plugins().items()}
    jinja_environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader("dsf.web"), jinja2.PrefixLoader(plugin_templates)]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    jinja_environment.filters["shown_url"] = shown_url
    jinja_environment.filters |= {"age": _time, "until": functools.partial(_time, kind="until"), "clock": _clock}
    jinja_environment.filters |= {
        "ms": _milliseconds,
        "duration": duration,
        "term": quote_term,
        "number": _number,
        "rough": rough,
        "stamp": stamp,
        "minute": lambda at: f"{at:%Y-%m-%d %H:%M} UTC",
    }
    jinja_environment.globals |= {
        "advice": advice,
        "meaning": meaning,
        "states": STATES,
        "drawing": charts,
        "in_flower": in_flower,
        "describe_hold_rule": describe_hold_rule,
        "plugins": {plugin.path: plugin.title for plugin in plugins().values() if not plugin.is_tab},
        "tabs": {plugin.title: plugin.path for plugin in plugins().values() if plugin.is_tab},
    }
    return jinja_environment


def prepare() -> None:
    """Compile all templates, so that the first viewers need not wait."""
    jinja_environment = environment()
    for name in jinja_environment.list_templates():
        jinja_environment.get_template(name)


def link(root: str, place: str, /, **query: object) -> str:
    """Return the address of a page below the root path; callers quote segments of `place` with `segment`."""
    parameters = {name: str(value) for name, value in query.items() if value not in (None, "")}
    return root + place + (f"?{urlencode(parameters)}" if parameters else "")


def in_flower(flower: str, run: str) -> str:
    """Flower's list of the tasks of a run. Its page only accepts search words after a task's name."""
    return f"{flower.rstrip('/')}/tasks?name={quote(f'dsf. {run}')}"


def segment(text: str) -> str:
    """Return a name as one segment of a path."""
    return quote(text, safe="")


def render(template: str, root: str, context: Mapping[str, Any]) -> str:
    """Return a template."""
    return (
        environment()
        .get_template(template)
        .render(**context, root=root, url=functools.partial(link, root), segment=segment)
    )
