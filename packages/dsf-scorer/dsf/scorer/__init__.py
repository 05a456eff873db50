"""Scoring APIs in ten lines: one decorated function from time series to scores.

    app = Scorer(name="idle", description="...", score_name="idle", interval=30, source=Prometheus(...))

    @app.score
    def idle(series: list[Series]) -> Iterable[Score]:
        for one in series:
            if not one.is_empty:
                yield one.score(one.values.mean())

`uvicorn module:app` serves /healthz, /config, /scoring, /metrics and /docs. Several scorers go into one `ScorerApp`.

This package imports nothing else of `dsf`: it is also published alone, for images with a scorer and no framework.

    definition      a scorer: name, source and scoring function
    series          a time series: labels and samples
    result          results of the function: scores and skipped series
    source          the source section of /config
    limits          limits on requests
    bearer          the token of /scoring
    errors          errors of a scorer
    scorer          a scorer that serves itself
    app             the service of one or more scorers
    endpoint        handles one scoring request
    bodies          bounds the bodies that are being received
    connections     divides the server's connections among clients
    requestbody     parses a body into series
    responsebody    builds the response
    metrics         metrics of the service
    openapi         the OpenAPI document
    page            /docs
    autoregression  forecasts a series, a tool for functions
    environment     numbers from environment variables, a tool for functions
"""

from dsf.scorer.app import ScorerApp
from dsf.scorer.autoregression import Forecast, forecast
from dsf.scorer.bearer import Bearer
from dsf.scorer.definition import Sources
from dsf.scorer.environment import env_number
from dsf.scorer.errors import ScorerError, Unavailable
from dsf.scorer.limits import Limits
from dsf.scorer.result import Score, Skipped
from dsf.scorer.scorer import Scorer
from dsf.scorer.series import Gap, Series, to_frame
from dsf.scorer.source import Prometheus, Source

__all__ = [
    "Bearer",
    "Forecast",
    "Gap",
    "Limits",
    "Prometheus",
    "Score",
    "Scorer",
    "ScorerApp",
    "ScorerError",
    "Series",
    "Skipped",
    "Source",
    "Sources",
    "Unavailable",
    "env_number",
    "forecast",
    "to_frame",
]
