"""Costs of an agent on its cluster, and its throughput over a slow line to the hub.

    python -m bench.agent [--seconds S] [--milliseconds MS] [--quick] [--strict] [--json FILE]

A real agent and Redis; source and scoring API are a process of their own (100 x 61 samples, 10 results). Measured are
CPU until it is ready, memory, connections and CPU at rest, CPU with 10 scorers of 30 s, and over a line with a round
trip of 100 ms (`bench.delay`) the time from tick to result and the cycles a second. The last two are measured again
through a port-forward, as with `redis.exposure.type: HubAPI`, in turns with the direct connection.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import redis

from bench.common import MEGABYTE, Figure, Measurement, format_spread, make_parser, process, report
from bench.peers import make_summary, run_server
from dsf import keys
from dsf.messages import derive_key, make_run_id
from dsf.store.ticks import make_tick_message
from tests.support.mail import MailboxReader
from tests.support.portforwardserver import POD, write_kubeconfig
from tests.support.redisserver import RedisServer, free_port
from tests.support.wait import wait_for

CLUSTER, SERIES, RESULTS = "bench", 100, 10
#: Scorers and interval of a typical agent, and scorers of a busy one.
SCORERS, INTERVAL, MANY = 10, 30, 40
SECONDS, QUICK_SECONDS = 90.0, 30.0
#: Limits of the figures.
_MEMORY, _REST, _WORK, _CONNECTIONS, _START, _RATE, _TRIPS = 75, 0.2, 0.5, 4, 1.2, 15, 2
#: Cycles a second through a port-forward, as a share of those over a direct connection.
_FORWARDED = 0.8


class ReadyAgent:
    """A ready agent, and a client that is as near to Redis as the hub."""

    def __init__(self, client: redis.Redis, pid: int, started: float) -> None:
        self.client = client
        self.process = psutil.Process(pid)
        #: CPU seconds until it was ready.
        self.started = started
        self.sent = MailboxReader(client, CLUSTER)

    def read_cpu_seconds(self) -> float:
        """Return the CPU seconds so far, including those of ended threads."""
        return float(sum(self.process.cpu_times()[:2]))

    def send_tick(self, scorer: int) -> None:
        """Send one tick."""
        message = make_tick_message(CLUSTER, f"scorer-{scorer}", make_run_id(), time.time() + 300)
        self.client.lpush(keys.spoke_queue(CLUSTER), message)

    def collect_results(self, count: int, seconds: float = 120) -> None:
        """Wait for this many results, and remove them from the mailbox as the hub's collector does."""
        slots = keys.mail_slots(CLUSTER)
        result_count, deadline = 0, time.monotonic() + seconds
        while result_count < count:
            result_count += int(self.client.delete(*slots))
            if time.monotonic() > deadline:
                raise TimeoutError(f"{result_count} of {count} results")
            time.sleep(0.001)

    def count_connections(self) -> int:
        """Return the number of its connections to Redis."""
        return sum(str(connection["name"]).startswith("dsf-") for connection in self.client.client_list())

    def measure_cpu_percent(self, seconds: float, every: float | None = None) -> float:
        """Return the CPU in percent of a core over this many seconds, with a tick at each interval `every`."""
        cpu_before, began, number = self.read_cpu_seconds(), time.monotonic(), 0
        while (now := time.monotonic()) < began + seconds:
            if every is None:
                time.sleep(began + seconds - now)
                continue
            self.send_tick(number % SCORERS)
            number += 1
            self.collect_results(1)
            time.sleep(max(0.0, began + number * every - time.monotonic()))
        return 100 * (self.read_cpu_seconds() - cpu_before) / (time.monotonic() - began)

    def measure_latency(self) -> float:
        """Return the seconds from a tick to its result in the hub's Redis."""
        began = time.monotonic()
        self.send_tick(0)
        self.collect_results(1)
        return time.monotonic() - began

    def measure_rate(self, count: int) -> float:
        """Return the cycles per second while `count` ticks wait."""
        for number in range(count):
            self.send_tick(number % MANY)
        began = time.monotonic()
        self.collect_results(count)
        return count / (time.monotonic() - began)


@contextmanager
def agent(
    url: str, scorers: int, milliseconds: float = 0.0, *, uses_port_forward: bool = False
) -> Iterator[ReadyAgent]:
    """Yield a ready agent with this many scorers, over a connection with this round trip to Redis or to the API
    server.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis_server = stack.enter_context(RedisServer())
        port = redis_server.port
        if uses_port_forward:
            port = _port(stack.enter_context(run_server("bench.portforward", "--to", str(port))))
        if milliseconds:
            command = ("bench.delay", "--to", str(port), "--milliseconds", str(milliseconds))
            port = _port(stack.enter_context(run_server(*command)))
        summaries = [
            make_summary(f"scorer-{n}", url, SERIES, RESULTS).model_dump(by_alias=True) for n in range(scorers)
        ]
        (folder / "config.json").write_text(json.dumps(summaries))
        (folder / "key").write_text(derive_key(bytes(range(32)), CLUSTER, 1).dump())
        environment = os.environ | {
            "DSF_CLUSTER": CLUSTER,
            "DSF_REDIS_URL": f"redis://127.0.0.1:{free_port() if uses_port_forward else port}/0",
            "DSF_AGENT_CONFIG": str(folder / "config.json"),
            "DSF_AGENT_SPOOL_DIR": str(folder / "spool"),
            "DSF_LISTEN_HOST": "127.0.0.1",
            "DSF_LISTEN_PORT": "0",
            "DSF_PROBE_DIR": str(folder),
            "DSF_SIGNING_KEY_FILE": str(folder / "key"),
        }
        if uses_port_forward:
            write_kubeconfig(folder / "kubeconfig", port, "token")
            environment |= {"DSF_REDIS_POD": POD, "DSF_HUB_KUBECONFIG": str(folder / "kubeconfig")}
        # As in the image, whose modules are compiled.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        started = stack.enter_context(process([sys.executable, "-m", "dsf.agent"], environment, folder / "log"))
        wait_for((folder / "ready").exists, 60, "the agent to be ready", interval=0.01)
        cpu = float(sum(psutil.Process(started.pid).cpu_times()[:2]))
        client = redis_server.client()
        yield ReadyAgent(client, started.pid, cpu)


def _port(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


def measure(seconds: float, milliseconds: float, rounds: int) -> Measurement:
    """Return all figures."""
    with run_server() as url:
        starts = []
        for _ in range(rounds):
            with agent(url, SCORERS) as running_agent:
                starts.append(running_agent.started)
        with agent(url, SCORERS) as running_agent:
            time.sleep(5)
            at_rest = running_agent.measure_cpu_percent(seconds)
            memory = running_agent.process.memory_full_info()
            connections = running_agent.count_connections()
            at_work = running_agent.measure_cpu_percent(seconds, INTERVAL / SCORERS)
            memory_after, busy_connections = running_agent.process.memory_info().rss, running_agent.count_connections()
        with agent(url, MANY, milliseconds) as far, agent(url, MANY, milliseconds, uses_port_forward=True) as forwarded:
            for remote_agent in (far, forwarded):
                remote_agent.measure_latency()
                remote_agent.measure_rate(MANY)
            firsts = [far.measure_latency() for _ in range(2 * rounds)]
            forwarded_firsts = [forwarded.measure_latency() for _ in range(2 * rounds)]
            rates, forwarded_rates = zip(
                *((far.measure_rate(MANY), forwarded.measure_rate(MANY)) for _ in range(rounds)), strict=True
            )
    rate, forwarded_rate = statistics.median(rates), statistics.median(forwarded_rates)
    forwarded_trips = 1000 * statistics.median(forwarded_firsts) / milliseconds
    trips = 1000 * statistics.median(firsts) / milliseconds
    line = f"a round trip of {milliseconds:g} ms"
    usual = f"{SCORERS} scorers x {INTERVAL} s"
    return [
        Figure(
            "agent: CPU until it is ready",
            format_spread(starts, "s"),
            statistics.median(starts),
            "s",
            upper_limit=_START,
        ),
        Figure(
            "agent: memory at rest",
            f"RSS {memory.rss / MEGABYTE:.1f}, PSS {memory.pss / MEGABYTE:.1f}, own {memory.uss / MEGABYTE:.1f} MiB;"
            f" after work RSS {memory_after / MEGABYTE:.1f}",
            memory.rss / MEGABYTE,
            "MiB",
            upper_limit=_MEMORY,
        ),
        Figure("agent: CPU at rest", f"{at_rest:.2f} % of a core", at_rest, "%", upper_limit=_REST),
        Figure(f"agent: CPU with {usual}", f"{at_work:.2f} % of a core", at_work, "%", upper_limit=_WORK),
        Figure(
            "agent: connections to Redis",
            f"{connections}; {busy_connections} after work",
            busy_connections,
            "",
            upper_limit=_CONNECTIONS,
        ),
        Figure("agent: tick to result", format_spread(firsts, "s", 3), trips, "round trips", line, upper_limit=_TRIPS),
        Figure("agent: cycles a second", format_spread(rates, "/s"), rate, "/s", line, lower_limit=_RATE),
        Figure(
            "agent: tick to result through a port-forward",
            format_spread(forwarded_firsts, "s", 3),
            forwarded_trips,
            "round trips",
            line,
            upper_limit=_TRIPS,
        ),
        Figure(
            "agent: cycles a second through a port-forward, to direct",
            format_spread(forwarded_rates, "/s"),
            forwarded_rate / rate,
            "",
            line,
            lower_limit=_FORWARDED,
        ),
    ], {"starts": starts, "firsts": firsts, "rates": rates, "forwarded_rates": forwarded_rates, "seconds": seconds}


def main() -> int:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, help=f"of each measurement of CPU (default {SECONDS:g})")
    parser.add_argument("--milliseconds", type=float, default=100.0, help="of a round trip over the long line")
    arguments = parser.parse_args()
    seconds = arguments.seconds or (QUICK_SECONDS if arguments.quick else SECONDS)
    return report(arguments, measure(seconds, arguments.milliseconds, 3 if arguments.quick else 5))


if __name__ == "__main__":
    sys.exit(main())
