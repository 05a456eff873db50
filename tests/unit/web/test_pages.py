"""Pages of other distributions: unusable plug-ins are reported, and the others load."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest

from dsf.web import guard, pages, rendering
from dsf.web.pages import GROUP, PagePlugin
from dsf.web.rendering import get_environment
from dsf.web.views import VIEWS

NO_TEMPLATES = PagePlugin("None", "/none", "dsf.store", ())


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """Replace the installed entry points; clears the caches before and after the test."""
    entries: list[EntryPoint] = []
    monkeypatch.setattr(pages, "entry_points", lambda group: entries if group == GROUP else [])
    cached_functions = (pages.load_plugins, rendering.get_environment, guard.list_own_segments)
    for function in cached_functions:
        function.cache_clear()
    yield entries
    for function in cached_functions:
        function.cache_clear()


def test_unusable_plugin_is_named_once_and_others_load(
    installed: list[EntryPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[dict[str, str]] = []
    monkeypatch.setattr("dsf.web.pages.log.warning", lambda _, **fields: warnings.append(fields))
    installed += [
        EntryPoint("gone", "dsf.none.pages:PAGES", GROUP),
        EntryPoint("other", "dsf.web.views:VIEWS", GROUP),
        EntryPoint("plain", f"{__name__}:NO_TEMPLATES", GROUP),
        EntryPoint("plans", "dsf.optimizer.pages:PAGES", GROUP),
    ]
    for _ in range(2):
        assert list(pages.load_plugins()) == ["plans"]
    assert [(warning["name"], warning["error"].partition(":")[0]) for warning in warnings] == [
        ("gone", "ModuleNotFoundError"),
        ("other", "TypeError"),
        ("plain", "ValueError"),
    ]
    assert pages.list_views(VIEWS)[len(VIEWS) :] == list(pages.load_plugins()["plans"].views)
    assert get_environment().globals["plugins"] == {"/plans": "Plans"}
    assert not guard.is_prefix("/plans/x")
    assert guard.is_prefix("/placements")


def test_without_plug_ins_there_are_the_pages_of_the_framework(installed: list[EntryPoint]) -> None:
    assert pages.list_views(VIEWS) == list(VIEWS)
    assert "plans/plan.html" not in get_environment().list_templates()
    rendering.compile_templates()


def test_plugins_of_the_project_are_installed() -> None:
    assert {name: plugin.path for name, plugin in pages.load_plugins().items()} == {
        "backtests": "/backtests",
        "placements": "/placements",
        "plans": "/plans",
    }
    # A tab is on the pages of scorers, not in the navigation.
    assert get_environment().globals["plugins"] == {"/placements": "Placements", "/plans": "Plans"}
    assert get_environment().globals["tabs"] == {"Backtests": "/backtests"}
    assert {"backtests/backtests.html", "placements/placement.html", "plans/plan.html"} <= set(
        get_environment().list_templates()
    )
