"""Renders views as HTML.

Two renderings on the same day are equal if the data has not changed, because times are in the attribute `datetime` and
ages are inserted last. If they differ, a browser replaces only the elements that differ.
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
from dsf.reasons import DescribedReason, EmptyReason, FailureReason, RefusalReason, SkipReason, strip_markdown
from dsf.text import escape_unprintable, shorten_url
from dsf.web import charts
from dsf.web.pages import load_plugins
from dsf.web.search import quote_term
from dsf.web.states import STATES

#: Reasons by name. Failure reasons come last, because they replace other reasons of the same name.
_REASONS: Final[Mapping[str, DescribedReason]] = {
    reason.value: reason
    for reason_type in (EmptyReason, RefusalReason, SkipReason, FailureReason)
    for reason in reason_type
}
#: Largest number of seconds that an age shows in seconds.
_MAX_SHOWN_SECONDS: Final = 99
#: A time element whose age is missing: opening tag, time, kind of age, closing tag.
_AGE_ELEMENT_PATTERN: Final = re.compile(r'(<time datetime="([^"]+)" data-(age|until)>)(</time>)')
#: The tag of the root element, to which the current time is added.
_ROOT: Final = '<html lang="en">'


def insert_ages(html: str, now: float | None = None) -> str:
    """Return the HTML with the ages of its time elements, for a browser without JavaScript, and with the time itself.

    The browser compares the time with its own clock, which may be wrong. `now` is in unix seconds; the default is the
    hub's time.
    """
    current_time = hubclock.now() if now is None else now

    def insert_age(match: re.Match[str]) -> str:
        remaining_seconds = datetime.fromisoformat(match[2]).timestamp() - current_time
        if match[3] == "age":
            text = f"{format_duration(-remaining_seconds)} ago"
        else:
            text = f"in {format_duration(remaining_seconds)}" if remaining_seconds >= 1 else "now"
        return f"{match[1]}{text}{match[4]}"

    root = f'<html lang="en" data-now="{format_timestamp(current_time)}">'
    return _AGE_ELEMENT_PATTERN.sub(insert_age, html.replace(_ROOT, root, 1))


def compute_digest(text: str) -> str:
    """Return a short SHA-256 digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def format_duration(seconds: float) -> str:
    """Return a duration such as `12 s`, `3 min`, `2 h 5 min` or `4 d`."""
    whole_seconds = max(0, int(seconds))
    if whole_seconds <= _MAX_SHOWN_SECONDS:
        return f"{whole_seconds} s"
    if whole_seconds < 3600:
        return f"{whole_seconds // 60} min"
    if whole_seconds < 86_400:
        return f"{whole_seconds // 3600} h {whole_seconds % 3600 // 60} min"
    return f"{whole_seconds // 86_400} d"


def format_timestamp(time: float | datetime | None) -> str:
    """Return a time for the attribute `datetime`; empty for None. A number is in unix seconds."""
    if time is None:
        return ""
    moment = time if isinstance(time, datetime) else datetime.fromtimestamp(max(0.0, time), UTC)
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _make_visible(value: Any) -> Any:
    """Escape the non-printable characters of a text, such as terminals' commands and changes of the direction."""
    return escape_unprintable(value, allowed_characters="\n\t") if type(value) is str else value


def _render_age(time: float | datetime | None, kind: str = "age") -> Markup:
    """Return a time element whose age is inserted by the browser or by `insert_ages`.

    `kind` is `age` for the time since then, `until` for the time until then.
    """
    if time is None:
        return Markup('<span class="none">-</span>')
    return Markup('<time datetime="{}" data-{}></time>').format(format_timestamp(time), kind)


def _render_clock(time: float | datetime | None) -> Markup:
    """Return a time element with the time of day in UTC, and with the date unless it is today's."""
    if time is None:
        return Markup('<span class="none">-</span>')
    timestamp = format_timestamp(time)
    day, clock = timestamp[:10], timestamp[11:19]
    clock_text = clock if day == format_timestamp(hubclock.now())[:10] else f"{day} {clock}"
    return Markup('<time datetime="{}">{}</time>').format(timestamp, clock_text)


def _format_milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def format_rough_duration(seconds: float) -> str:
    """Return a duration in coarse steps such as `10 s`, `20 s` or `1 min`, so that the page changes less often."""
    steps = (1, 2, 5, 10, 15, 20, 30, 45, 60, 90)
    step = next((step for step in steps if seconds <= step), None)
    return f"{step} s" if step is not None else format_duration(seconds)


def get_advice(reason: str) -> str:
    """Return the advice for a reason; empty for an unknown reason."""
    return strip_markdown(_REASONS[reason].advice) if reason in _REASONS else ""


def get_meaning(reason: str) -> str:
    """Return the meaning of a reason; empty for an unknown reason."""
    return strip_markdown(_REASONS[reason].meaning) if reason in _REASONS else ""


@functools.cache
def get_environment() -> jinja2.Environment:
    """Return the Jinja environment with the templates of this package and of plug-ins.

    All values are escaped, also their non-printable characters, and an undefined name is an error.
    """
    plugin_loaders = {name: plugin.template_loader for name, plugin in load_plugins().items()}
    jinja_environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader("dsf.web"), jinja2.PrefixLoader(plugin_loaders)]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_make_visible,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    jinja_environment.filters["shown_url"] = shorten_url
    jinja_environment.filters |= {
        "age": _render_age,
        "until": functools.partial(_render_age, kind="until"),
        "clock": _render_clock,
        "ms": _format_milliseconds,
        "duration": format_duration,
        "term": quote_term,
        "number": _format_number,
        "rough": format_rough_duration,
        "stamp": format_timestamp,
        "minute": lambda at: f"{at:%Y-%m-%d %H:%M} UTC",
    }
    jinja_environment.globals |= {
        "advice": get_advice,
        "meaning": get_meaning,
        "states": STATES,
        "drawing": charts,
        "in_flower": make_flower_link,
        "describe_hold_rule": describe_hold_rule,
        "plugins": {plugin.path: plugin.title for plugin in load_plugins().values() if not plugin.is_tab},
        "tabs": {plugin.title: plugin.path for plugin in load_plugins().values() if plugin.is_tab},
    }
    return jinja_environment


def compile_templates() -> None:
    """Compile all templates, because the first viewers would otherwise wait for the compilation."""
    jinja_environment = get_environment()
    for name in jinja_environment.list_templates():
        jinja_environment.get_template(name)


def make_link(root: str, path: str, /, **query: object) -> str:
    """Return the address of a page below the root path, without empty query parameters.

    `path` is the page's path. Callers quote names in it with `quote_segment`.
    """
    parameters = {name: str(value) for name, value in query.items() if value not in (None, "")}
    return root + path + (f"?{urlencode(parameters)}" if parameters else "")


def make_flower_link(flower_url: str, run: str) -> str:
    """Return the address of Flower's list of the tasks of a run."""
    # The query starts with a task's name, because Flower only accepts search words after one.
    return f"{flower_url.rstrip('/')}/tasks?name={quote(f'dsf. {run}')}"


def quote_segment(text: str) -> str:
    """Return a name, quoted as one segment of a path."""
    return quote(text, safe="")


def render(template: str, root: str, context: Mapping[str, Any]) -> str:
    """Return the HTML of a template with the data of `context`. `root` is the path prefix of all addresses."""
    return (
        get_environment()
        .get_template(template)
        .render(**context, root=root, url=functools.partial(make_link, root), segment=quote_segment)
    )
