"""Acts that users request by an annotation on a DynamicScorer, and the hub's responses in its status.

The annotation of an act is `dynamic-scoring.open-cluster-management.io/<act>`. The hub executes an act once for each
new value. A value consists of words, quoted as in a shell: one plain word, and `name=value`.

    rescore="$(date +%s) cluster=worker01,worker02"
    pause="2h selector='region in (eu, us)' note='new disks'"
    interval="5m at=$(date +%s)"

The plain word is the interval of `interval` and the optional end of `pause`. For other acts the plain word has no
effect, and `at` has none for any act. Users set them to make a value differ from the previous one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, get_args

from pydantic import Field, StrictInt

from dsf.api.durations import is_duration, parse_duration
from dsf.api.meta import StatusModel, Time, limit_pause_end
from dsf.api.selector import ClusterSelector, Requirement
from dsf.api.types import GROUP, MAX_SECONDS
from dsf.text import clean

Act = Literal["rescore", "pause", "resume", "interval", "reset", "sync"]
#: All acts. If several are new at once and their times are equal, they are executed in this order.
ACTS: Final[tuple[Act, ...]] = get_args(Act)
#: Maximum characters of an annotation's value. Further characters are ignored.
MAX_REQUEST: Final = 2000
#: Maximum runs in a response.
MAX_RUNS: Final = 20

_NAMES: Final = ("cluster", "selector", "note", "at")
_REQUIREMENT_PATTERN: Final = re.compile(r"(?P<key>[^\s=!,()]+)\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)")


def get_annotation(act: str) -> str:
    """Return the annotation that requests an act."""
    return f"{GROUP}/{act}"


@dataclass(frozen=True)
class ActRequest:
    """A request for an act."""

    act: Act
    #: Names of the affected clusters. Without names and selector, the act affects all clusters that run the scorer.
    clusters: tuple[str, ...] = ()
    #: Selects the affected clusters by label, in place of names.
    selector: ClusterSelector | None = None
    #: New interval in seconds; 0 for other acts.
    interval: int = 0
    #: Duration of a pause in seconds; None if `pause_end` is set, or without an end.
    pause_seconds: int | None = None
    #: Unix time at which a pause ends; None if `pause_seconds` is set, or without an end.
    pause_end: float | None = None
    note: str = ""

    def compute_end(self, now: float) -> float | None:
        """Return the end of a pause that starts at `now`, both in Unix seconds; None without an end."""
        return self.pause_end if self.pause_seconds is None else limit_pause_end(now + self.pause_seconds)


def parse_request(act: Act, text: str) -> ActRequest:
    """Parse the value of an act's annotation. Raises ValueError, whose text names the annotation and a remedy."""
    try:
        return _parse(act, text)
    except ValueError as error:
        raise ValueError(f"annotation {get_annotation(act)}: {clean(str(error), 500)}") from None


def make_request(plain: str, *, at: str, clusters: Iterable[str] = (), selector: str = "", note: str = "") -> str:
    """Return the value of an annotation; `plain` is its plain word, if any."""
    words = [plain] if plain else []
    cluster_names = [*clusters]
    named_values = {"selector": selector, "note": note, "at": at}
    words += [f"cluster={shlex.quote(','.join(cluster_names))}"] if cluster_names else []
    return " ".join([*words, *(f"{name}={shlex.quote(value)}" for name, value in named_values.items() if value)])


def _parse(act: Act, text: str) -> ActRequest:
    try:
        words = shlex.split(text)
    except ValueError:
        raise ValueError(f"a quote in {text!r} is not closed") from None
    plain_words: list[str] = []
    named_values: dict[str, str] = {}
    for word in words:
        name, is_named, value = word.partition("=")
        if not is_named:
            plain_words.append(word)
        elif name not in _NAMES:
            raise ValueError(f"{name!r} is unknown; known are {', '.join(_NAMES)}")
        elif not value and name in ("cluster", "selector"):
            # The value may come from an unset shell variable, which must not select all clusters.
            raise ValueError(f"{name} is empty; leave it out for all clusters")
        elif name in named_values:
            raise ValueError(f"{name} is there twice; separate several clusters by commas")
        else:
            named_values[name] = value
    if len(plain_words) > 1:
        raise ValueError(
            f"{' '.join(plain_words)!r}: only one plain word is possible; quote texts, as in note='new disks'"
        )
    clusters = tuple(dict.fromkeys(name for name in named_values.get("cluster", "").split(",") if name))
    selector = parse_selector(named_values["selector"]) if named_values.get("selector") else None
    if clusters and selector:
        raise ValueError("cluster and selector cannot go together")
    if act == "sync" and (clusters or selector):
        raise ValueError("sync reads /config once for all clusters: leave out cluster and selector")
    pause_seconds, pause_end = _parse_end(plain_words[0]) if act == "pause" and plain_words else (None, None)
    return ActRequest(
        act=act,
        clusters=clusters,
        selector=selector,
        interval=_parse_interval(plain_words) if act == "interval" else 0,
        pause_seconds=pause_seconds,
        pause_end=pause_end,
        note=named_values.get("note", ""),
    )


def _parse_interval(plain_words: list[str]) -> int:
    seconds = parse_duration(plain_words[0]) if plain_words else 0
    if not 1 <= seconds <= MAX_SECONDS:
        raise ValueError("the interval is missing: give a time of at least 1 s, such as 30s or 5m")
    return seconds


def _parse_end(text: str) -> tuple[int | None, float | None]:
    if is_duration(text):
        return parse_duration(text), None
    try:
        end = datetime.fromisoformat(text)
    except ValueError:
        end = None
    if end is None or end.tzinfo is None:
        raise ValueError(f"{text!r} is not the end of a pause; use 2h, or a time such as 2026-11-21T10:00:00Z")
    return None, limit_pause_end(end)


def parse_selector(text: str) -> ClusterSelector:
    """Parse a label selector in the syntax of kubectl's `--selector`: `env=prod,tier!=db,zone in (a,b),!old`.

    Raises ValueError.
    """
    requirements: list[Requirement] = []
    # Commas within parentheses separate values.
    for part in re.split(r",(?![^()]*\))", text):
        requirement = part.strip()
        if match := _REQUIREMENT_PATTERN.fullmatch(requirement):
            values = tuple(value.strip() for value in match["values"].split(","))
            operator = "In" if match["operator"] == "in" else "NotIn"
        elif match := re.fullmatch(r"([^\s=!,()]+)\s*(==|=|!=)\s*([^\s=!,()]*)", requirement):
            values, operator = (match[3],), "NotIn" if match[2] == "!=" else "In"
        elif match := re.fullmatch(r"!\s*([^\s=!,()]+)|([^\s=!,()]+)", requirement):
            values, operator = (), "DoesNotExist" if match[1] else "Exists"
        else:
            raise ValueError(f"{text!r} is not a selector of labels such as env=prod or 'region in (eu,us)'")
        key = next(group for group in match.groups() if group)
        requirements.append(Requirement(key=key, operator=operator, values=values))
    return ClusterSelector(match_expressions=tuple(requirements))


class ActRun(StatusModel):
    """A cycle that was requested by `rescore`."""

    cluster: str = Field(description="Name of the managed cluster.")
    run: str = Field(default="", description="The run id; empty if no tick was sent.")
    outcome: str = Field(default="", description="Outcome of the cycle; empty while it runs.")
    stage: str = Field(default="", description="The stage that failed.")
    reason: str = Field(default="", description="Why there is no score, as one word for programs.")
    message: str = Field(default="", description="Why there is no score, as a sentence for people.")
    has_score: bool = Field(default=False, description="True if the cycle gave a score.")


class ActResponse(StatusModel):
    """The hub's response to the newest request for an act."""

    act: Act = Field(description="The act: the annotation without the prefix of this API group.")
    request: str = Field(description="The value of the annotation that was handled.")
    handled_at: Time = Field(description="Time at which the hub began to execute the act.")
    by: str = Field(
        default="", description="Who set the annotation: the manager in managedFields, which is not verified."
    )
    outcome: Literal["Running", "Done", "Failed", "Refused"] = Field(
        description="Running: its cycles or reads have not ended. Done: it had its effect. Failed: it was executed and "
        "has not had its whole effect. Refused: nothing was changed."
    )
    message: str = Field(default="", description="What was done, or why not, as a sentence for people.")
    clusters: StrictInt = Field(
        default=0,
        description="Number of affected clusters; of an act on all clusters those on which the scorer ran then.",
        ge=0,
    )
    runs: list[ActRun] | None = Field(
        default=None,
        description=f"The cycles of rescore, those without a score first; at most {MAX_RUNS}.",
        max_length=MAX_RUNS,
    )


def find_requests(annotations: Mapping[str, str]) -> dict[Act, str]:
    """Return the value of each annotation that requests an act. An empty value requests nothing."""
    text_by_act = {act: annotations.get(get_annotation(act), "").strip()[:MAX_REQUEST] for act in ACTS}
    return {act: text for act, text in text_by_act.items() if text}
