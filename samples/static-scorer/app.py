"""A scoring API without a source: fixed scores from two tables, one path for each.

Use such a scorer when the facts do not change with the minute: which device suits which application, what a device
costs. A service may offer several scores; each is registered as a DynamicScorer of its own. Start it with `uvicorn
app:app --port 8000`.
"""

from __future__ import annotations

from dsf.scorer import Score, Scorer, ScorerApp, Series, env_number

#: (application, device) -> score. Higher is better.
Table = dict[tuple[str, str], float]

PERFORMANCE: Table = {
    ("app01", "all"): 80.0,
    ("app02", "all"): 80.0,
    ("app01", "3g.48gb"): 60.0,
    ("app02", "3g.48gb"): 55.0,
    ("app01", "2g.24gb"): 10.0,
    ("app02", "2g.24gb"): 15.0,
}
POWER_CONSUMPTION: Table = {
    ("app01", "all"): 20.0,
    ("app02", "all"): 10.0,
    ("app01", "3g.48gb"): 30.0,
    ("app02", "3g.48gb"): 55.0,
    ("app01", "2g.24gb"): 80.0,
    ("app02", "2g.24gb"): 90.0,
}
#: Seconds between two cycles. `env=""` is not possible, because SCORE_NAME cannot be the name of both scores.
INTERVAL = int(env_number("SCORE_INTERVAL", 30, least=1, whole=True))

performance = Scorer(
    name="example-performance-scorer",
    description="An example performance score",
    score_name="example_performance_score",
    interval=INTERVAL,
    path="/performance",
)
power_consumption = Scorer(
    name="example-powerconsumption-scorer",
    description="An example power consumption score",
    score_name="example_powerconsumption_score",
    interval=INTERVAL,
    path="/powerconsumption",
)

app = ScorerApp(performance, power_consumption, title="static-scorer")


@performance.score
def performance_scores(_: list[Series]) -> list[Score]:
    """Return how well a device suits an application."""
    return scores(PERFORMANCE)


@power_consumption.score
def power_consumption_scores(_: list[Series]) -> list[Score]:
    """Return how little power an application uses on a device."""
    return scores(POWER_CONSUMPTION)


def scores(table: Table) -> list[Score]:
    """Return the whole table, whatever the request contains."""
    return [Score(score, {"app": application, "device": device}) for (application, device), score in table.items()]
