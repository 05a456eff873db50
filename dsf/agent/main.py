"""`dsf agent`: the worker of one cluster.

The worker runs in this process with a thread pool: the stages wait for HTTP, and their shared state (configuration,
scores on /metrics, running cycles) is in memory.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

from pydantic import SecretStr

import dsf.log
import dsf.settings
from dsf.errors import SettingsError
from dsf.launch import USAGE
from dsf.settings import ENV_PREFIX, Settings

log = dsf.log.get(__name__)


def run(config: Settings) -> int:
    """Run until SIGTERM or SIGINT, and return the exit code: 0, or 2 if a setting is missing or wrong.

    After SIGTERM it finishes the cycles that have begun; each stage has its time-out.
    """
    dsf.log.setup(config)
    try:
        return _run(_own(config))
    except SettingsError as error:
        log.error("agent cannot start", problem=str(error))
        return USAGE


def _own(config: Settings) -> Settings:
    """Make these the process's settings, with the agent's role: the Celery application uses them."""
    if "dsf.celery" in sys.modules and dsf.settings.settings().role != "agent":
        raise SettingsError("DSF_ROLE: the Celery application of another role is loaded in this process already")
    for name in config.model_fields_set | {"role"}:
        value = "agent" if name == "role" else getattr(config, name)
        if isinstance(value, SecretStr):
            value = value.get_secret_value()
        if value is not None:
            if isinstance(value, dict | list):
                value = json.dumps(config.model_dump(mode="json", include={name})[name])
            os.environ[ENV_PREFIX + name.upper()] = str(value)
    dsf.settings.settings.cache_clear()
    return dsf.settings.settings()


def _run(config: Settings) -> int:
    # Only now: importing it creates the application for the role in the settings.
    from celery import signals

    from dsf import memory, workerprobes
    from dsf.agent import consumer, pool, runtime, steps
    from dsf.agent.moving import Moving
    from dsf.celery import app

    def _on_revoked(request: Any, *, expired: bool = False, **_: Any) -> None:
        if expired:
            agent.flow.expired(request)

    if config.log_level != "DEBUG":
        # Two lines for each task, one here and one in `dsf.agent.tracer`, would be a fifth of a cycle's CPU.
        logging.getLogger("celery.worker.strategy").setLevel(logging.WARNING)
    memory.prepare()
    memory.give_back_large_blocks()
    agent = runtime.Runtime(config)
    moving = Moving(config)
    agent.config.on_redis(moving.heard)
    agent.start()
    runtime.install(agent)

    signals.task_revoked.connect(_on_revoked, weak=False)
    signals.worker_ready.connect(lambda **_: memory.settle(), weak=False)
    app.steps["worker"].add(workerprobes.Liveness)
    app.steps["consumer"].add(steps.EventBatches)
    app.steps["consumer"].add(steps.AgentStep)
    log.info("agent starts", cluster=config.cluster, concurrency=config.agent_concurrency)
    try:
        worker: Any = app.Worker(
            hostname=f"spoke@{config.cluster}",
            pool_cls=pool.StagePool,
            consumer_cls=consumer.AgentConsumer,
            concurrency=config.agent_concurrency,
            queues=[agent.queue],
            loglevel=config.log_level,
            task_events=True,
            # With either every worker listens to every other one, over the WAN.
            without_gossip=True,
            without_mingle=True,
            heartbeat_interval=config.agent_heartbeat_interval,
            quiet=True,
        )
        worker.start()
    finally:
        agent.stop()
    moving.go()
    return int(worker.exitcode or 0)
