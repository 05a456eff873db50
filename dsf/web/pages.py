"""The definition of a page, and the pages and actions of other distributions: the entry point group `dsf.pages`.

    plans = "package.pages:PAGES"     a `PagePlugin`

The plug-in's templates render what is inside a page, and may import the page's `macros.html`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, Protocol

import jinja2

import dsf.log
from dsf.fleet.actions import Actions
from dsf.settings import Settings
from dsf.web.access import LOOK, PageUser, Right
from dsf.web.objects import ScorerReader, read_nothing
from dsf.web.pagedata import Reading

if TYPE_CHECKING:
    from dsf.kube.session import Session

GROUP: Final = "dsf.pages"
#: Name in a query, set by the site itself: the right for which a page shows more, if the viewer has it.
ALLOWED: Final = "allowed"

log = dsf.log.get(__name__)

Query = Mapping[str, str]


@dataclass(frozen=True)
class Sources:
    """Data sources of the pages."""

    reading: Reading
    scorer_object: ScorerReader = read_nothing
    #: Session with the API server; None without one.
    session: Session | None = None
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True)
class PageView:
    """A page: its path, template and data."""

    path: str
    template: str
    build: Callable[[Sources, Mapping[str, str], Query], dict[str, Any]]
    #: Whether an open page polls it.
    live: bool = True
    #: Required right, besides read access.
    needs: Right = LOOK
    #: A right with which it shows more; its viewers without it share another rendering.
    more_with: Right | None = None
    #: Whether its subject supports actions: a scorer, or one on one cluster.
    acts: bool = False
    #: Parameters of its query; others are ignored, so that the same page is rendered once.
    knows: tuple[str, ...] = ("cursor",)


@dataclass(frozen=True)
class Act:
    """An action of a user."""

    name: str
    title: str
    button: str
    help: str
    #: Template with the fields of its form, for a plug-in's action, which changes no cluster; and their first values.
    template: str = ""
    values: Mapping[str, str] = field(default_factory=dict)


class FormError(Exception):
    """A field of a form is invalid; the message says which and why."""


@dataclass(frozen=True)
class ActionTarget:
    """Target of an action: a scorer on one cluster, or on all (None)."""

    scorer: str
    cluster: str | None


class PluginActions(Protocol):
    """Performs the actions of a plug-in."""

    def context(self, act: str, target: ActionTarget) -> dict[str, Any]:
        """Data of the form's template."""

    def perform(
        self, act: str, target: ActionTarget, form: Mapping[str, str], caller: PageUser, actions: Actions
    ) -> tuple[str, dict[str, str]]:
        """Perform the action; returns path and query of the page with its outcome. `actions` records it.

        Raises FormError before any change.
        """

    def stop(self) -> None:
        """End what runs."""


@dataclass(frozen=True)
class PagePlugin:
    """The object of an entry point in the group `dsf.pages`."""

    #: Its entry in the navigation, or its tab on the page of each scorer: the path there.
    title: str
    path: str
    #: The package with the folder `templates`. A view names one of them after the entry point: `plans/plan.html`.
    package: str
    views: tuple[PageView, ...]
    is_tab: bool = False
    acts: tuple[Act, ...] = ()
    #: Makes the object that performs `acts`, once for each web service.
    actions: Callable[[Sources], PluginActions] | None = None

    @property
    def templates(self) -> jinja2.BaseLoader:
        """Raises ValueError without the folder."""
        return jinja2.PackageLoader(self.package)


@functools.cache
def plugins() -> Mapping[str, PagePlugin]:
    """Return the installed page plug-ins, by name. A plug-in that cannot be used is logged and left out."""
    usable: dict[str, PagePlugin] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            plugin = entry.load()
            if not isinstance(plugin, PagePlugin):
                raise TypeError("it is no dsf.web.pages.PagePlugin")
            # Whether it has templates.
            _ = plugin.templates
        except Exception as error:  # noqa: BLE001 (third-party code)
            why = f"{type(error).__name__}: {error}"
            log.warning("pages of another package are left out", name=entry.name, object=entry.value, error=why)
        else:
            usable[entry.name] = plugin
    return usable


def all_views(own_views: Iterable[PageView]) -> list[PageView]:
    """Return the page's own, and those of plug-ins."""
    return [*own_views, *(view for plugin in plugins().values() for view in plugin.views)]
