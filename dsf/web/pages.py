"""Types of pages and actions, and the loader of the page plug-ins in the entry point group `dsf.pages`.

Each entry point names a `PagePlugin`:

    plans = "package.pages:PAGES"

The plug-in's templates render the content of a page, and may import `macros.html` of this package.
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
from dsf.web.access import READ_RIGHT, PageUser, Right
from dsf.web.objects import ScorerReader, read_nothing
from dsf.web.pagedata import PageDataReader

if TYPE_CHECKING:
    from dsf.kube.session import Session

#: The entry point group of page plug-ins.
GROUP: Final = "dsf.pages"
#: Query parameter that the site itself sets if the viewer has the right `PageView.optional_right`. Its value is the
#: name of that right.
OPTIONAL_RIGHT_PARAMETER: Final = "allowed"

log = dsf.log.get(__name__)

Query = Mapping[str, str]


@dataclass(frozen=True)
class Sources:
    """The data sources of the pages."""

    #: Reads the fleet's data from Redis.
    reading: PageDataReader
    #: Reads a DynamicScorer from the API server; without access to one, it finds none.
    read_scorer: ScorerReader = read_nothing
    #: Session with the API server; None without one.
    session: Session | None = None
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True)
class PageView:
    """A page: its path, its template, and the function that builds the template's data.

    `build` receives the sources, the names in the path, and the query.
    """

    path: str
    template: str
    build: Callable[[Sources, Mapping[str, str], Query], dict[str, Any]]
    #: True if an open page polls for changes.
    is_live: bool = True
    #: The right that viewers need besides read access.
    required_right: Right = READ_RIGHT
    #: A right with which the page shows more. Viewers with and without it get different renderings.
    optional_right: Right | None = None
    #: True if the page offers actions, because it is about a scorer or about a scorer on one cluster.
    has_actions: bool = False
    #: Parameters of the page's query. Others are ignored, because each different query is rendered separately.
    query_parameters: tuple[str, ...] = ("cursor",)


@dataclass(frozen=True)
class Act:
    """An action that users can perform: its name and texts."""

    #: Name in the path of the form, and its title.
    name: str
    title: str
    #: Texts of the button, and of the sentence "It ..." that explains the action.
    button: str
    help: str
    #: Template with the form fields, only for an action of a plug-in. Such an action must not change clusters.
    template: str = ""
    #: Initial values of these fields.
    values: Mapping[str, str] = field(default_factory=dict)


class FormError(Exception):
    """An invalid form field. The message names the field and the reason."""


@dataclass(frozen=True)
class ActionTarget:
    """The target of an action: a scorer on one cluster, or on all clusters if `cluster` is None."""

    scorer: str
    #: Name of the cluster, or None for all clusters.
    cluster: str | None


class PluginActions(Protocol):
    """Performs the actions of a plug-in."""

    def build_form_data(self, act: str, target: ActionTarget) -> dict[str, Any]:
        """Return the data of the form's template."""

    def perform(
        self, act: str, target: ActionTarget, form: Mapping[str, str], caller: PageUser, actions: Actions
    ) -> tuple[str, dict[str, str]]:
        """Perform the action, and return path and query of the page with its outcome.

        `form` contains the fields of the form. `actions` records the action in the list of changes. Raises FormError
        for invalid fields before anything is changed.
        """

    def stop(self) -> None:
        """Stop all running actions."""


@dataclass(frozen=True)
class PagePlugin:
    """The pages and actions of a plug-in, to which an entry point of the group `dsf.pages` refers."""

    #: Title and path of the plug-in's entry in the navigation, or of its tab on the page of each scorer.
    title: str
    path: str
    #: The package with the folder `templates`. Views refer to a template below the entry point's name:
    #: `plans/plan.html`.
    package: str
    views: tuple[PageView, ...]
    #: True if the plug-in has a tab on the page of each scorer instead of an entry in the navigation.
    is_tab: bool = False
    acts: tuple[Act, ...] = ()
    #: Returns True if the navigation has the entry. A page without data, and without a way to get any, is not offered.
    is_offered: Callable[[Sources], bool] = lambda _: True
    #: Returns the object that performs `acts`. It is called once for each web service.
    make_actions: Callable[[Sources], PluginActions] | None = None

    @property
    def template_loader(self) -> jinja2.BaseLoader:
        """Return the loader of the plug-in's templates. Raises ValueError if the package has no folder `templates`."""
        return jinja2.PackageLoader(self.package)


@functools.cache
def load_plugins() -> Mapping[str, PagePlugin]:
    """Return the installed page plug-ins by name. Unusable plug-ins are logged and left out."""
    usable_plugins: dict[str, PagePlugin] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            plugin = entry.load()
            if not isinstance(plugin, PagePlugin):
                raise TypeError("it is no dsf.web.pages.PagePlugin")
            # Raises ValueError for a package without templates.
            _ = plugin.template_loader
        except Exception as error:  # noqa: BLE001 (third-party code)
            cause = f"{type(error).__name__}: {error}"
            log.warning("pages of another package are left out", name=entry.name, object=entry.value, error=cause)
        else:
            usable_plugins[entry.name] = plugin
    return usable_plugins


def list_views(own_views: Iterable[PageView]) -> list[PageView]:
    """Return `own_views` and the views of plug-ins."""
    return [*own_views, *(view for plugin in load_plugins().values() for view in plugin.views)]
