"""Definition of a scorer: name, source and scoring function."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from dsf.scorer.errors import ScorerError
from dsf.scorer.limits import Limits
from dsf.scorer.result import Score, Skipped
from dsf.scorer.series import Series
from dsf.scorer.source import Source, check_base_url, check_seconds, read_whole_number

if TYPE_CHECKING:
    from dsf.scorer.bearer import Bearer

ScoringResults = Iterable[Score | Skipped]
#: The series of each source by the name of the source.
Sources = Mapping[str, list[Series]]
ScoringFunction = Callable[[list[Series]], ScoringResults] | Callable[[list[Series]], Awaitable[ScoringResults]]
AnyScoringFunction = TypeVar("AnyScoringFunction", bound=ScoringFunction)
SourcesFunction = Callable[[Sources], ScoringResults] | Callable[[Sources], Awaitable[ScoringResults]]
AnySourcesFunction = TypeVar("AnySourcesFunction", bound=SourcesFunction)

_PATH_PATTERN = re.compile(r"(/[A-Za-z0-9_.~-]+)*")
#: Maximum sources of one scorer.
MAX_SOURCES = 8
_SOURCE_NAME_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_INVALID_VARIABLE_CHARACTER_PATTERN = re.compile(r"[^A-Za-z0-9]")
_CONTROL_CHARACTER_PATTERN = re.compile(r"[\x00-\x1f\x7f]")


class Definition:
    """The definition of one score, without the service around it.

    name, description   of the scoring API, for display
    score_name          name of the score
    interval            seconds between two cycles
    source              the source; None: the function gets an empty list
    sources             instead of `source`: at most 8 sources by name. A function decorated with `score` gets the
                        series of the first source, and a hub that knows only one source queries the first
    path                prefix of /config and /scoring, such as "/performance", when a service has several scorers
    scoring_host        URL of this service as agents see it, if the hub reads /config at another host
    token               required by /scoring; None: no token
    limits              bounds of a request
    env                 a prefix, or "": environment variables such as SOURCE_QUERY override these values

    Raises ScorerError for an invalid value.
    """

    def __init__(
        self,
        *,
        name: str,
        description: str,
        score_name: str,
        interval: int,
        source: Source | None = None,
        sources: Mapping[str, Source] | None = None,
        path: str = "",
        scoring_host: str = "",
        token: Bearer | None = None,
        limits: Limits | None = None,
        env: str | None = None,
    ) -> None:
        if env is not None:
            if name_override := os.environ.get(f"{env}SCORE_NAME"):
                _check_name(f"the environment variable {env}SCORE_NAME", name_override)
                score_name = name_override
            seconds = read_whole_number(os.environ, f"{env}SCORE_INTERVAL")
            if seconds is not None:
                check_seconds(f"the environment variable {env}SCORE_INTERVAL", seconds, minimum=1)
                interval = seconds
            source = source.overridden(os.environ, env) if source is not None else None
            if sources is not None:
                sources = {
                    name: entry.overridden(
                        os.environ, f"{env}{_INVALID_VARIABLE_CHARACTER_PATTERN.sub('_', name).upper()}_"
                    )
                    for name, entry in sources.items()
                }
        _check_name("name", name)
        _check_name("score_name", score_name)
        check_seconds("interval", interval, minimum=1)
        if scoring_host:
            check_base_url("scoring_host", scoring_host)
        self.name = name
        self.description = description
        self.score_name = score_name
        self.interval = interval
        if sources is not None:
            _check_sources(source, sources)
        self.sources = dict(sources or {})
        self.source = source if sources is None else next(iter(sources.values()))
        self.path = clean_path("path", path)
        self.scoring_host = scoring_host
        self.token = token
        self.limits = limits or Limits()
        self._function: ScoringFunction | SourcesFunction | None = None
        #: True if the function takes the series of each source by its name.
        self.takes_sources = False

    def score(self, function: AnyScoringFunction) -> AnyScoringFunction:
        """Decorate the scoring function, which takes a list of `Series` and returns or yields `Score` objects.

        A plain function runs in a thread, an `async def` in the event loop. The function is returned unchanged.
        Raises ScorerError when the scorer has a function already, or for an async generator.
        """
        self._set_function(function)
        return function

    def score_sources(self, function: AnySourcesFunction) -> AnySourcesFunction:
        """Decorate the scoring function of several sources, which takes a list of `Series` by name of the source.

        Every name of `sources` is present: a request without one of them, from an agent that is too old, is refused
        with 422. Otherwise as `score`.
        """
        self._set_function(function)
        self.takes_sources = True
        return function

    def _set_function(self, function: ScoringFunction | SourcesFunction) -> None:
        if self._function is not None:
            raise ScorerError(f"the scorer {self.name!r} has a scoring function already")
        if inspect.isasyncgenfunction(function):
            raise ScorerError("an async scoring function must return its scores and not yield them")
        self._function = function

    @property
    def function(self) -> ScoringFunction | SourcesFunction:
        """The scoring function. Raises ScorerError when there is none."""
        if self._function is None:
            raise ScorerError(f"the scorer {self.name!r} has no scoring function; put @....score before one")
        return self._function

    def config(self, root: str = "") -> dict[str, Any]:
        """Return the response of /config. `root` is the path prefix of the service, as clients see it."""
        scoring: dict[str, Any] = {"host": self.scoring_host} if self.scoring_host else {}
        scoring |= {
            "path": f"{root}{self.path}/scoring",
            "params": {"name": self.score_name, "interval": self.interval},
        }
        named_sources = [{"name": name, **source.document()} for name, source in self.sources.items()]
        return {
            "name": self.name,
            "description": self.description,
            "source": self.source.document() if self.source is not None else {"type": "None"},
            **({"sources": named_sources} if named_sources else {}),
            "scoring": scoring,
        }


def clean_path(name: str, path: str) -> str:
    """Return a path such as `a/b/` in the form `/a/b`. Raises ScorerError when the path is not valid in a URL."""
    cleaned_path = "/" + path.strip("/") if path.strip("/") else ""
    if _PATH_PATTERN.fullmatch(cleaned_path) is None or any(part in (".", "..") for part in cleaned_path.split("/")):
        raise ScorerError(f"{name}: {path!r} is not a path such as /performance")
    return cleaned_path


def _check_sources(source: Source | None, sources: Mapping[str, Source]) -> None:
    if source is not None:
        raise ScorerError("source and sources: give one of them; the first of sources is what source would be")
    if not 1 <= len(sources) <= MAX_SOURCES:
        raise ScorerError(f"sources: {len(sources)} of them; a scorer has 1 to {MAX_SOURCES}")
    for name in sources:
        if _SOURCE_NAME_PATTERN.fullmatch(name) is None:
            raise ScorerError(f"sources: {name!r} is no name of letters, digits, `-`, `_` and `.`, such as cpu-use")


def _check_name(argument: str, value: str) -> None:
    if not value.strip() or _CONTROL_CHARACTER_PATTERN.search(value):
        raise ScorerError(f"{argument}: {value!r} must be text without control characters, and not empty")
