"""Starts the results worker in this process."""

from __future__ import annotations

import os
import socket

from celery import signals

from dsf import keys
from dsf.process import memory
from dsf.results.ingest import master_secret
from dsf.settings import ENV_PREFIX, Settings, settings


def run(config: Settings) -> int:
    """Run the results worker until SIGTERM or SIGINT; returns its exit code.

    Raises SettingsError if the master secret is missing or wrong.
    """
    master_secret(config)
    # The Celery application reads the role from the environment.
    os.environ[ENV_PREFIX + "ROLE"] = "results"
    settings.cache_clear()
    memory.prepare()
    signals.worker_ready.connect(lambda **_: memory.settle(), weak=False)
    # The application is created at import, for the role just set.
    from dsf.celery import app

    worker = app.Worker(
        hostname=f"results@{socket.gethostname()}",
        queues=[keys.RESULTS_QUEUE],
        pool=app.conf.worker_pool,
        loglevel=config.log_level,
        task_events=True,
        without_gossip=True,
        without_mingle=True,
        # Seconds; each heartbeat is sent to all listeners.
        heartbeat_interval=30,
    )
    worker.start()
    code: int = worker.exitcode or 0
    return code
