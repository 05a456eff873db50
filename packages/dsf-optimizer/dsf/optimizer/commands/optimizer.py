"""`dsf optimizer`: the server of the optimiser, and its dependencies shared with `dsf optimize`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from dsf.fleet.changes import Way
    from dsf.optimizer.comparison import Comparison
    from dsf.optimizer.service import Board, Done, Record, Rescore
    from dsf.optimizer.views import PlanReport
    from dsf.settings import Settings


def optimizer(
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on; default 127.0.0.1.")] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Port; default 8338, 0 takes a free one.")
    ] = None,
    auth: Annotated[
        Literal["kubernetes", "token", "none"] | None,
        typer.Option("--auth", help="Authentication of callers; none only on a loopback address."),
    ] = None,
) -> None:
    """Run the optimiser: HTTP API for plans, scores and their explanation, with /docs; for assistants at /mcp.

    Example: dsf optimizer --auth none
    """
    from dsf.cli.session import hub_settings
    from dsf.optimizer.main import run
    from dsf.optimizer.mcp import McpMount
    from dsf.settings import Settings

    asked = {"listen_host": host, "listen_port": port, "optimizer_auth": auth}
    given = {"role": "optimizer"} | {name: value for name, value in asked.items() if value is not None}
    settings = hub_settings(Settings.load().model_copy(update=given))
    raise typer.Exit(run(settings, rescorer(settings), McpMount, recorder(settings, "api"), board(settings)))


def rescorer(settings: Settings) -> Rescore | None:
    """Sends ticks through the hub's Redis; None without Redis."""
    if "redis_url" not in settings.model_fields_set:
        return None
    from dsf.fleet import rescore as rescoring
    from dsf.optimizer.views import RescoreRun
    from dsf.store.client import connect

    def rescore(scorer: str, clusters: Sequence[str] | None) -> list[RescoreRun]:
        client = connect(settings, name="dsf-optimizer", retries=1)
        try:
            runs = list(rescoring.send(client, settings, scorer, clusters))
        finally:
            client.close()
        return [RescoreRun(cluster=run.cluster, run_id=run.run_id, message=run.message) for run in runs]

    return rescore


def recorder(settings: Settings, way: Way, name: str | None = None) -> Record | None:
    """Records changes in the hub's Redis; None without Redis.

    `way` applies to actions that are not an assistant's; `name` is the author without an authenticated caller, by
    default the user of this process.
    """
    if "redis_url" not in settings.model_fields_set:
        return None
    import redis

    import dsf.log
    from dsf.cli.person import who
    from dsf.errors import DsfError
    from dsf.fleet.changes import Action, Actor, UserAction
    from dsf.fleet.changes import record as write
    from dsf.store.client import connect

    def record(done: Done) -> None:
        actor = Actor(name=done.by or name or who(), claimed=done.claimed, way="mcp" if done.by_tool else way)
        user_action = UserAction(
            action=Action(done.what),
            scorer=done.scorer,
            clusters=list(done.clusters),
            cluster_count=done.count,
            namespace=done.namespace,
            reference=done.reference,
            detail=done.detail,
        )
        try:
            # Its settings may name a file that is not there.
            with contextlib.closing(connect(settings, name="dsf-optimizer", retries=1)) as client:
                write(client, actor, user_action)
        except (redis.RedisError, DsfError) as error:
            # The action itself has succeeded.
            dsf.log.get(__name__).error("the change cannot be recorded", action=done.what, error=str(error))

    return record


def board(settings: Settings) -> Board | None:
    """Publishes plans to the page through the hub's Redis; None without Redis."""
    if "redis_url" not in settings.model_fields_set:
        return None
    import redis

    import dsf.log
    from dsf.errors import DsfError
    from dsf.fleet import plans
    from dsf.store.client import connect

    class InRedis:
        """See `Board`."""

        def show(self, report: PlanReport, comparison: Comparison) -> None:
            """See the protocol."""
            plan_comparison = plans.PlanComparison.of(report.model_dump(), comparison.model_dump())
            self._do(lambda client: plans.remember(client, plan_comparison))

        def clear(self, namespace: str) -> None:
            """See the protocol."""
            self._do(lambda client: plans.forget(client, namespace))

        def _do(self, act: Callable[[redis.Redis], object]) -> None:
            try:
                with contextlib.closing(connect(settings, name="dsf-optimizer", retries=1)) as client:
                    act(client)
            except (redis.RedisError, DsfError) as error:
                # The plan itself is unaffected.
                dsf.log.get(__name__).error("the plan cannot be stored for the page", error=str(error))

    return InRedis()
