"""The source plug-in for pushed metrics: its receiver starts with the first such scorer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import Metric

import dsf.log
from dsf import metrics as names
from dsf.errors import HttpError, SettingsError
from dsf.otlp.selector import parse_query
from dsf.settings import Settings
from dsf.sources.base import OTLP_PATH
from dsf.sources.memory import SourceMemory, check_grid, compute_lookback
from dsf.sources.plugin import Options, Plugin, Request, Series
from dsf.sources.window import Grid

try:
    from dsf.otlp.received import Received
    from dsf.otlp.receiver import Receiver
except ModuleNotFoundError as error:
    raise ImportError(
        f"receiving metrics needs the extra `otel`: pip install 'dynamic-scoring-framework[otel]' ({error})"
    ) from error

log = dsf.log.get(__name__)

#: Decoded bytes of one pushed request. At most four are parsed at a time, each at several times its size.
MAX_BYTES: Final = 8 * 1024 * 1024
_NO_RECEIVER_MESSAGE: Final = (
    f"path {OTLP_PATH} means what a collector pushes to the agent, and no receiver runs in this process: "
    "start the agent with DSF_OTLP_PORT, or give the path at which a collector serves Prometheus' format "
    "(`dsf explain` cannot show what is in an agent's memory)"
)


class Pushed:
    """Runs the receiver of pushed metrics, and keeps their samples."""

    def __init__(self, memory: SourceMemory, settings: Settings) -> None:
        """Start the receiver. Raises HttpError if the settings have no port, or it is in use."""
        if settings.otlp_port is None:
            raise HttpError("unsupported_source", _NO_RECEIVER_MESSAGE)
        host, port = settings.listen_address()[0], settings.otlp_port
        self.received = Received(memory.budget, memory.summaries)
        self.receiver = Receiver(self.received, host, port, max_bytes=MAX_BYTES, token_file=settings.client_token_file)
        try:
            self.receiver.start()
        except SettingsError as error:
            raise HttpError("plugin_failed", str(error)) from None
        memory.add_shared_window(self.received.window, lambda: self.received.scorers)
        log.info("metrics are received", host=host, port=self.receiver.address[1])

    def tidy(self) -> None:
        """Drop samples that have expired or that no scorer selects any more."""
        self.received.tidy()

    def families(self) -> Iterator[Metric]:
        """Yield metrics of pushed points by outcome."""
        pushed = names.OTLP_SAMPLES.make_counter()
        for result, number in list(self.received.counts.items()):
            pushed.add_metric((result,), number)
        yield pushed

    def stop(self) -> None:
        """Stop the receiver."""
        self.receiver.stop()


def fetch(request: Request[Options]) -> Iterator[Series]:
    """Yield pushed samples of the selected series, in the order of the queries."""
    pushed: Pushed | None = request.running
    if pushed is None:
        raise HttpError("unsupported_source", _NO_RECEIVER_MESSAGE)
    length = request.end - request.start if request.step else 0
    grid = check_grid(Grid(request.end, length, request.step, compute_lookback(request.interval)))
    for selector in parse_query(request.query, required=True):
        for series, points in pushed.received.window.select_series(selector.matches, grid, request.check):
            yield Series(series.labels, points)


PLUGIN: Final = Plugin(1, Options, fetch, Pushed)
