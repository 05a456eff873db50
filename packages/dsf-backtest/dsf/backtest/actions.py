"""The page's actions that start a backtest or a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dsf.api.types import MAX_SECONDS
from dsf.backtest.errors import BacktestError
from dsf.backtest.runner import BacktestRunner, RunRequest
from dsf.fleet.actions import Actions
from dsf.web.access import PageUser
from dsf.web.actions import parse_note, parse_whole_number
from dsf.web.pages import Act, ActionTarget, FormError, Sources
from dsf.web.rendering import quote_segment

_FORM: Final[Mapping[str, Any]] = {
    "template": "backtests/fields.html",
    "values": {"hours": "24", "every": "300", "other": "", "how": "now"},
}
ACTS: Final = (
    Act(
        "backtest",
        "Backtest",
        "Run a backtest",
        "asks source and scoring API as this page reaches them, for each moment of the past, and publishes nothing",
        **_FORM,
    ),
    Act(
        "compare",
        "Compare",
        "Run a comparison",
        "shows how another scorer differs, and which Placements would have other clusters, and publishes nothing",
        **_FORM,
    ),
)


class BacktestActions:
    """The page's actions for backtests and comparisons; see `dsf.web.pages.PluginActions`."""

    def __init__(self, sources: Sources) -> None:
        self._reading = sources.reading
        self._runner = BacktestRunner(sources)

    def build_form_data(self, act: str, target: ActionTarget) -> dict[str, Any]:
        """Return the scorers that this one can be compared with, by name."""
        return {"others": self._list_other_scorers(target.scorer) if act == "compare" else []}

    def perform(
        self, act: str, target: ActionTarget, form: Mapping[str, str], caller: PageUser, actions: Actions
    ) -> tuple[str, dict[str, str]]:
        """Start the run, and return path and query of the page with its result. Raises FormError."""
        note, request = parse_note(form), self._parse_request(act, target, form)

        def record_change() -> None:
            if request.other:
                actions.record_comparison(
                    request.scorer, request.other, request.clusters, request.since, request.every, note=note
                )
            else:
                actions.record_backtest(request.scorer, request.clusters[0], request.since, request.every, note=note)

        try:
            ident = self._runner.start(request, caller.name, record_change)
        except BacktestError as error:
            raise FormError(f"{error}.") from None
        return f"/scorers/{quote_segment(target.scorer)}/backtests", {"run": ident}

    def stop(self) -> None:
        """End the running backtest, and store its moments so far."""
        self._runner.stop()

    def _list_other_scorers(self, scorer: str) -> list[str]:
        return sorted(self._reading.registry.read_scorers().keys() - {scorer})

    def _parse_request(self, act: str, target: ActionTarget, form: Mapping[str, str]) -> RunRequest:
        is_past = act == "backtest" or form.get("how") == "past"
        seconds = 3600 * parse_whole_number("How far back", "hours", form.get("hours", ""), 24 * 365) if is_past else 0
        every = parse_whole_number("Every", "seconds", form.get("every", ""), MAX_SECONDS) if is_past else 0
        if act == "backtest":
            if target.cluster is None:
                raise FormError("Cluster: choose one.")
            return RunRequest(target.scorer, [target.cluster], seconds, every)
        other = form.get("other", "")
        if other not in self._list_other_scorers(target.scorer):
            raise FormError("The other scorer: choose one.")
        common_clusters = sorted(
            self._reading.read_schedules(target.scorer).keys() & self._reading.read_schedules(other).keys()
        )
        clusters = [name for name in common_clusters if target.cluster in (None, name)]
        if not clusters:
            cluster_label = target.cluster or "any cluster"
            raise FormError(f"The other scorer: {other} and {target.scorer} do not both run on {cluster_label}.")
        return RunRequest(target.scorer, clusters, seconds, every, other)
