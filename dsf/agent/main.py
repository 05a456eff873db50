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
from dsf.process.launch import USAGE
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

    from dsf.agent import runtime
    from dsf.celery import app
    from dsf.process import memory

    if config.log_level != "DEBUG":
        # Celery logs two lines for each task, which would be a fifth of a cycle's CPU. Failures are in its result.
        for name in ("celery.worker.strategy", "celery.app.trace"):
            logging.getLogger(name).setLevel(logging.WARNING)
    memory.prepare()
    agent = runtime.Runtime(config)
    agent.start()
    runtime.install(agent)

    signals.worker_ready.connect(lambda **_: memory.settle(), weak=False)
    signals.worker_shutting_down.connect(lambda **_: agent.ending.set(), weak=False)
    log.info("agent starts", cluster=config.cluster, concurrency=config.agent_concurrency)
    try:
        worker: Any = app.Worker(
            hostname=f"spoke@{config.cluster}",
            loglevel=config.log_level,
            task_events=True,
            # With either every worker listens to every other one, over the WAN.
            without_gossip=True,
            without_mingle=True,
            # `dsf.worker.events` sends them.
            without_heartbeat=True,
            quiet=True,
        )
        worker.start()
    finally:
        agent.stop()
    return int(worker.exitcode or 0)
