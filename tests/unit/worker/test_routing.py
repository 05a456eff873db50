"""Tasks called by people are routed to the named cluster or refused at the call."""

from __future__ import annotations

import pytest

from dsf.errors import RoutingError
from dsf.worker.application import make_app
from tests.support.fixtures import SettingsFactory


@pytest.mark.parametrize(
    ("task", "options", "problem"),
    [
        ("dsf.cycle", {}, r"queue='spoke\.<cluster>'"),
        ("dsf.fetch", {}, r"runs within dsf\.cycle"),
        ("dsf.fetch", {"queue": "spoke.c1"}, r"runs within dsf\.cycle"),
        ("dsf.publish", {"queue": "spoke.c1"}, r"runs within dsf\.cycle"),
    ],
)
def test_invalid_cycle_call_is_refused(
    settings_factory: SettingsFactory, task: str, options: dict[str, str], problem: str
) -> None:
    with (
        make_app(settings_factory(role="cli", redis_url="redis://127.0.0.1:1/0")) as app,
        pytest.raises(RoutingError, match=problem),
    ):
        app.send_task(task, ["sample"], **options)


def test_cycle_goes_to_its_cluster(settings_factory: SettingsFactory) -> None:
    with make_app(settings_factory(role="cli")) as app:
        assert app.amqp.router.route({"queue": "spoke.c1"}, "dsf.cycle")["queue"].name == "spoke.c1"
