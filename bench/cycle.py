"""Cost of a whole cycle: CPU of agent and Redis, bytes through the broker, and the agent's memory for a large cycle.

    python -m bench.cycle [--quick] [--strict] [--json FILE]

CPU is held against a chain of three tasks that do nothing, on a worker of Celery's own and the same Redis, in turns.
Source and scoring API are in a process of their own and are not counted, nor are beat and the results worker.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import redis
from celery import Celery, chain

from bench.common import (
    MEGABYTE,
    Figure,
    Measurement,
    format_spread,
    make_parser,
    process,
    read_cpu_seconds,
    read_highest_memory,
    report,
)
from bench.peers import POINTS, make_summary, run_server
from dsf import keys
from dsf.messages import derive_key, make_run_id
from dsf.settings import Settings
from dsf.store.ticks import make_tick_message
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for

#: Limits: CPU relative to the chain, bytes beside those of the result, memory in megabytes.
CPU_LIMIT, TRAFFIC_LIMIT, PEAK_LIMIT = 1.4, 12 * 1024, 130
#: Megabytes that may remain afterwards: the growth that `bench.memory` accepts.
AFTER_LIMIT = 8
SERIES, LARGE, RESULTS = 100, 10_000, 10
#: Cycles per second: a busy agent (30 scorers of 1 s), whose cycles start one after another.
PACE = 30.0
#: Cycles of one measurement. Short measurements in turns are equally affected by other load.
SCORERS = 25
CLUSTER = "bench"
#: Seconds between polls of the mailbox.
_LOOK = 0.02
PLAIN_QUEUE = "plain"
MASTER = bytes(range(32))


def plain(url: str, done_file: Path | None = None) -> Celery:
    """Return an application of Celery with three tasks that do nothing; `done_file` gets a byte for each finished
    chain.
    """
    app = Celery("bench", broker=url, set_as_current=False)
    app.conf.update(
        broker_transport_options={"ack_emulation": False, "sep": ":", "priority_steps": [0]},
        task_default_queue=PLAIN_QUEUE,
        task_ignore_result=True,
        worker_enable_remote_control=False,
    )

    def publish(scorer: str, run_id: str) -> None:
        """Do nothing, and report the end of the chain."""
        if done_file is not None:
            with done_file.open("ab") as file:
                file.write(b".")

    def nothing(scorer: str, run_id: str) -> None:
        """Do nothing."""

    app.task(nothing, name="bench.fetch", shared=False)
    app.task(nothing, name="bench.score", shared=False)
    app.task(publish, name="bench.publish", shared=False)
    return app


def plain_worker() -> int:
    """Run a worker of that application, with as many threads as an agent, and return its exit code."""
    app = plain(os.environ["DSF_REDIS_URL"], Path(os.environ["BENCH_DONE"]))
    threads = str(Settings.load().agent_concurrency)
    app.worker_main(
        ["worker", "-P", "threads", "-c", threads, "-E", "--without-gossip", "--without-mingle", "-l", "INFO"]
    )
    return 0


class Broker:
    """Redis, an agent and a plain worker on it, and their costs so far."""

    def __init__(
        self,
        redis_server: RedisServer,
        agent: subprocess.Popen[bytes],
        worker: subprocess.Popen[bytes],
        done_file: Path,
    ) -> None:
        self.redis: redis.Redis = redis_server.client()
        self.agent = psutil.Process(agent.pid)
        self._worker = psutil.Process(worker.pid)
        self._plain = plain(redis_server.url)
        self.server = psutil.Process(redis_server.pid)
        self._done = done_file

    def cpu(self) -> float:
        """Return the CPU seconds of agent, worker and Redis. Agent and worker are never busy at the same time."""
        return read_cpu_seconds(self.agent, self._worker, self.server)

    def traffic(self) -> int:
        """Return the bytes that Redis received and sent."""
        info: dict[str, int] = self.redis.info("stats")
        return info["total_net_input_bytes"] + info["total_net_output_bytes"]

    def cycles(self, scorers: list[str], pace: float = PACE) -> int:
        """Run a cycle of each scorer, at `pace` per second, and return the bytes of a result."""
        expires = time.time() + 300
        results: list[Any] = []

        def collect(seconds: float) -> int:
            """Remove the results that arrive within these seconds from the mailbox, and return their number."""
            deadline = time.monotonic() + seconds
            while True:
                # As a results worker: first the flag, then all slots.
                if self.redis.getdel(keys.mail_flag(CLUSTER)):
                    with self.redis.pipeline(transaction=False) as slots:
                        for slot in keys.mail_slots(CLUSTER):
                            slots.getdel(slot)
                        results.extend(text for text in slots.execute() if text)
                if (remaining_seconds := deadline - time.monotonic()) <= 0:
                    return len(results)
                time.sleep(min(remaining_seconds, _LOOK))

        for scorer in self._paced(scorers, pace, collect):
            tick = make_tick_message(CLUSTER, scorer, make_run_id(), expires)
            self.redis.lpush(keys.spoke_queue(CLUSTER), tick)
        wait_for(lambda: collect(0.05) == len(scorers), 60, "the results", interval=0)
        payload = results[-1].partition("\n")[2]
        assert '"outcome":"ok"' in payload, payload
        return len(payload)

    def chains(self, scorers: list[str]) -> None:
        """Run as many chains of tasks that do nothing."""
        expected_size = self._done.stat().st_size + len(scorers)
        for scorer in self._paced(scorers):
            arguments = (scorer, make_run_id())
            tasks = [self._plain.tasks[f"bench.{name}"] for name in ("fetch", "score", "publish")]
            chain(*(task.si(*arguments) for task in tasks)).apply_async(expires=300)
        wait_for(lambda: self._done.stat().st_size == expected_size, 60, "the chains", interval=0.05)

    def _paced(
        self, scorers: list[str], pace: float = PACE, wait: Callable[[float], object] = time.sleep
    ) -> Iterator[str]:
        """Yield the scorers at their times: every scorer has its own moment, as with beat."""
        started = time.monotonic()
        for number, scorer in enumerate(scorers):
            wait(max(0.0, started + number / pace - time.monotonic()))
            yield scorer


@contextmanager
def broker(url: str, scorers: list[str], series: int, results: int = RESULTS) -> Iterator[Broker]:
    """Yield a Redis with an agent that runs these scorers."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis_server = stack.enter_context(RedisServer())
        summaries = [make_summary(name, url, series, results).model_dump(by_alias=True) for name in scorers]
        (folder / "config.json").write_text(json.dumps(summaries))
        (folder / "key").write_text(derive_key(MASTER, CLUSTER, 1).dump())
        (folder / "done").touch()
        environment = os.environ | {
            "BENCH_DONE": str(folder / "done"),
            "DSF_CLUSTER": CLUSTER,
            "DSF_REDIS_URL": redis_server.url,
            "DSF_AGENT_CONFIG": str(folder / "config.json"),
            "DSF_AGENT_SPOOL_DIR": str(folder / "spool"),
            "DSF_LISTEN_HOST": "127.0.0.1",
            "DSF_LISTEN_PORT": "0",
            "DSF_PROBE_DIR": str(folder),
            "DSF_SIGNING_KEY_FILE": str(folder / "key"),
        }
        agent = stack.enter_context(process([sys.executable, "-m", "dsf.agent"], environment, folder / "log"))
        command = [sys.executable, "-m", "bench.cycle", "--plain-worker"]
        worker = stack.enter_context(process(command, environment, folder / "worker-log"))
        wait_for((folder / "ready").exists, 30, "the agent to be ready")
        yield Broker(redis_server, agent, worker, folder / "done")


def cost(url: str, rounds: int) -> dict[str, Any]:
    """Measure CPU and traffic of whole cycles and of chains that do nothing, in turns."""
    scorers = [f"scorer-{number}" for number in range(SCORERS)]
    cycles, chains, traffic = [], [], []
    with broker(url, scorers, SERIES) as running:
        result = 0
        for _ in range(2):
            result = running.cycles(scorers)
            running.chains(scorers)
        for _ in range(rounds):
            start, traffic_before = running.cpu(), running.traffic()
            running.cycles(scorers)
            middle = running.cpu()
            traffic.append((running.traffic() - traffic_before) / SCORERS)
            running.chains(scorers)
            cycles.append(1000 * (middle - start) / SCORERS)
            chains.append(1000 * (running.cpu() - middle) / SCORERS)
    ratios = [cycle_cost / chain_cost for cycle_cost, chain_cost in zip(cycles, chains, strict=True)]
    return {"cycle_ms": cycles, "chain_ms": chains, "ratios": ratios, "traffic_bytes": traffic, "result_bytes": result}


def memory(url: str, cycles: int) -> dict[str, Any]:
    """Measure the memory of an agent after small cycles, during large ones, and afterwards; in megabytes."""
    with broker(url, ["large"], LARGE) as running:
        idle_bytes = running.agent.memory_info().rss
        later_megabytes = []
        for _ in range(cycles):
            running.cycles(["large"])
            later_megabytes.append((running.agent.memory_info().rss - idle_bytes) / MEGABYTE)
        peak = (read_highest_memory(running.agent.pid) - idle_bytes) / MEGABYTE
    return {"rest_mb": idle_bytes / MEGABYTE, "peak_mb": peak, "after_mb": later_megabytes}


def measure(quick: bool) -> Measurement:
    """Return all figures."""
    with run_server() as url:
        measured = cost(url, 10 if quick else 30)
        large = memory(url, 3 if quick else 10)
    result = measured["result_bytes"]
    size = f"{LARGE:,} x {POINTS} samples"
    at_rest = f"the process at rest, {large['rest_mb']:.0f} MB"
    return [
        Figure(
            f"CPU of a whole cycle in agent + Redis, {SERIES} x {POINTS} samples",
            format_spread(measured["cycle_ms"], "ms"),
            statistics.median(measured["ratios"]),
            "x",
            f"no-op chain of three tasks, {format_spread(measured['chain_ms'], 'ms')}",
            upper_limit=CPU_LIMIT,
        ),
        Figure(
            "broker bytes of a cycle, both directions",
            format_spread(measured["traffic_bytes"], "B", 0),
            statistics.median(measured["traffic_bytes"]) - result,
            "B more",
            f"the result itself, {result} B",
            upper_limit=TRAFFIC_LIMIT,
        ),
        Figure(
            f"highest memory of an agent, {size}",
            f"{large['rest_mb'] + large['peak_mb']:.0f} MB",
            large["peak_mb"],
            "MB more",
            at_rest,
            upper_limit=PEAK_LIMIT,
        ),
        Figure(
            f"memory of an agent after {len(large['after_mb'])} cycles of {size}",
            f"{large['rest_mb'] + large['after_mb'][-1]:.0f} MB",
            large["after_mb"][-1],
            "MB more",
            at_rest,
            upper_limit=AFTER_LIMIT,
        ),
    ], {"cost": measured, "memory": large}


def main() -> int:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--plain-worker", action="store_true", help="be the worker that does nothing")
    arguments = parser.parse_args()
    return plain_worker() if arguments.plain_worker else report(arguments, measure(arguments.quick))


if __name__ == "__main__":
    sys.exit(main())
