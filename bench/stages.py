"""What a cycle costs the agent: CPU and memory of its stages, CPU and broker traffic of a whole cycle.

    python -m bench.stages [--json FILE] [--quick]

Every figure is held against one that is measured in the same run: moving the same bytes with requests and nothing
else, and a chain of three tasks that do nothing on the same worker and the same Redis. Source and scoring API are
processes of their own and are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socketserver
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
import requests
from rich.console import Console
from rich.table import Table

from dsf import keys
from dsf.agent.config import FileConfig
from dsf.agent.cycle import Cycles
from dsf.agent.memory import give_back_large_blocks
from dsf.agent.metrics import AgentMetrics
from dsf.agent.secrets import Tokens
from dsf.agent.spool import Spool
from dsf.api.summary import ScorerSummary
from dsf.messages import derive_key, new_run_id
from dsf.settings import Settings
from dsf.ticks import TickFactory
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for

POINTS = 61
SERIES = (100, 1_000, 10_000)
#: What each ratio is to reach.
CPU_LIMITS = {100: 1.3, 1_000: 2.3, 10_000: 2.6}
MEMORY_LIMIT = 130 * 1024 * 1024
CYCLE_LIMIT = 1.4
TRAFFIC_LIMIT = 12 * 1024
#: Cycles a second: a busy agent (30 scorers of 1 s), whose cycles begin one after another.
PACE = 30.0
CLUSTER = "bench"
MASTER = bytes(range(32))
ROOT = Path(__file__).parents[1]


def matrix(series: int) -> bytes:
    """An answer of Prometheus as it looks: 200 KB for 100 series of 61 points."""
    result = [
        {
            "metric": {
                "__name__": "container_memory_working_set_bytes",
                "namespace": f"team-{number % 20}",
                "node": f"node-{number % 50}.example.internal",
                "pod": f"workload-{number}-7c5d8f9b6d-x{number % 97:02d}z",
                "container": "main",
            },
            "values": [
                [1718600000 + 60 * k, f"{(number * 7919 + k * 104729) % 10**9 / 997:.13g}"] for k in range(POINTS)
            ],
        }
        for number in range(series)
    ]
    document = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    return json.dumps(document, separators=(",", ":")).encode()


def scores(number: int) -> bytes:
    """An answer of a scoring API with this many results."""
    results = [{"metric": {"namespace": "team", "pod": f"workload-{i}"}, "score": i % 100 + 0.5} for i in range(number)]
    return json.dumps({"results": results}, separators=(",", ":")).encode()


class Peer(socketserver.StreamRequestHandler):
    """Source and scoring API: `/get/<series>` answers with a matrix, `/post/<results>` reads a body and scores."""

    disable_nagle_algorithm = True
    answers: dict[str, bytes]

    def handle(self) -> None:
        """Requests of one connection, one after another."""
        while line := self.rfile.readline():
            path = line.split()[1].split(b"?")[0].decode()
            length = 0
            while (header := self.rfile.readline()) not in (b"\r\n", b""):
                name, _, value = header.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            left = length
            while left:
                left -= len(self.rfile.read1(left))
            if path not in self.answers:
                kind, number = path.strip("/").split("/")
                self.answers[path] = (matrix if kind == "get" else scores)(int(number))
            body = self.answers[path]
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            self.connection.sendall(head.encode() + body)


def serve() -> None:
    """Be the peers, and print the port."""

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

        def handle_error(self, *_: object) -> None:
            """Measurements end in the middle of an exchange."""

    Peer.answers = {}
    with Server(("127.0.0.1", 0), Peer) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


@contextmanager
def peers() -> Iterator[str]:
    """URL of running peers."""
    command = [sys.executable, "-m", "bench.stages", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


def summary(name: str, url: str, series: int, results: int) -> ScorerSummary:
    """A scorer whose source and scoring API are the peers."""
    return ScorerSummary(
        name=name,
        score_name=f"{name}-score",
        source_type="Prometheus",
        source_endpoint=f"{url}/get/{series}",
        source_query="container_memory_working_set_bytes",
        source_range=3600,
        source_step=60,
        scoring_endpoint=f"{url}/post/{results}",
        scoring_interval=300,
    )


def rss() -> int:
    """Resident bytes of this process."""
    return psutil.Process().memory_info().rss


def per_call(work: Callable[[], object], seconds: float) -> float:
    """CPU seconds of one call, user and system, from calls for about `seconds`."""
    calls = 0
    started = time.monotonic()
    before = time.process_time()
    while calls < 2 or time.monotonic() - started < seconds:
        work()
        calls += 1
    return (time.process_time() - before) / calls


def stages(url: str, series: int, results: int, rounds: int, seconds: float) -> dict[str, Any]:
    """CPU of fetch + score against moving the same bytes, measured in turns; and the memory of the stages."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(cluster=CLUSTER)
        config = FileConfig(Path(folder) / "config.json")
        spool = Spool(Path(folder) / "spool")
        spool.prepare()
        cycles = Cycles(settings, Tokens(None), spool, AgentMetrics(CLUSTER, config))
        scorer = summary("bench", url, series, results)
        session = requests.Session()
        session.trust_env = False
        params = {"query": scorer.source_query, "start": 0, "end": 3600, "step": 60}

        def move() -> None:
            body = session.get(scorer.source_endpoint, params=params).content
            answer = session.post(scorer.scoring_endpoint, data=body, headers={"Content-Type": "application/json"})
            assert answer.content

        def cycle() -> None:
            run = cycles.enter(new_run_id(), scorer, None)
            cycles.fetch(run)
            cycles.score(run)
            cycles.leave(run.scorer, run.run_id)

        # The peers make their answers at the first request.
        requests.get(scorer.source_endpoint, timeout=60, stream=True).close()
        give_back_large_blocks()
        at_rest = rss()
        cycle()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        after = rss()
        move()
        pairs = [(per_call(move, seconds), per_call(cycle, seconds)) for _ in range(rounds)]
        session.close()
    return {
        "series": series,
        "results": results,
        "move_ms": 1000 * statistics.median(move_ for move_, _ in pairs),
        "cycle_ms": 1000 * statistics.median(cycle_ for _, cycle_ in pairs),
        "ratio": statistics.median(cycle_ / move_ for move_, cycle_ in pairs),
        "rest_bytes": at_rest,
        "peak_bytes": peak - at_rest,
        "after_bytes": after - at_rest,
    }


def stages_apart(url: str, series: int, results: int, rounds: int, seconds: float) -> dict[str, Any]:
    """The same in a process of its own, so that one size does not warm up the next, and with its own peak."""
    arguments = [url, str(series), str(results), str(rounds), str(seconds)]
    command = [sys.executable, "-m", "bench.stages", "--stages", *arguments]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(output)
    return found


def agent() -> int:
    """The real agent, with three more tasks that do nothing. `BENCH_DONE` gets a byte per finished chain."""
    from celery import shared_task

    from dsf.agent.main import run

    done = os.open(os.environ["BENCH_DONE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @shared_task(name="bench.fetch", ignore_result=True)
    def fetch(scorer: str, run_id: str) -> None:
        """Nothing."""

    @shared_task(name="bench.score", ignore_result=True)
    def score(scorer: str, run_id: str) -> None:
        """Nothing."""

    @shared_task(name="bench.publish", ignore_result=True)
    def publish(scorer: str, run_id: str) -> None:
        """Nothing, but say that it is done."""
        os.write(done, b".")

    return run(Settings.load())


class Broker:
    """Redis, an agent on it, and what both have used so far."""

    def __init__(self, server: RedisServer, process: subprocess.Popen[bytes], done: Path) -> None:
        self.redis: redis.Redis = server.client()
        self._processes = [psutil.Process(server.pid), psutil.Process(process.pid)]
        self._done = done
        self._ticks = TickFactory()

    def cpu(self) -> float:
        """CPU seconds of agent and Redis."""
        return sum(sum(process.cpu_times()[:2]) for process in self._processes)

    def traffic(self) -> int:
        """Bytes in and out of Redis."""
        info: dict[str, int] = self.redis.info("stats")  # type: ignore[assignment]
        return info["total_net_input_bytes"] + info["total_net_output_bytes"]

    def cycles(self, scorers: list[str]) -> int:
        """One cycle of each scorer; bytes of the results."""
        self._push(scorers, "dsf")
        wait_for(lambda: self.redis.llen(keys.RESULTS_QUEUE) == len(scorers), 60, "the results", interval=0.05)
        with self.redis.pipeline() as pipe:
            pipe.strlen("none")
            pipe.lrange(keys.RESULTS_QUEUE, 0, 0)
            pipe.delete(keys.RESULTS_QUEUE)
            first = pipe.execute()[1][0]
        envelope = json.loads(json.loads(first)["body"])[0][0]
        assert '"outcome":"ok"' in envelope["body"], envelope["body"]
        return len(envelope["body"])

    def chains(self, scorers: list[str]) -> None:
        """As many chains of tasks that do nothing."""
        wanted = self._done.stat().st_size + len(scorers)
        self._push(scorers, "bench")
        wait_for(lambda: self._done.stat().st_size == wanted, 60, "the chains", interval=0.05)

    def _push(self, scorers: list[str], prefix: str) -> None:
        expires = time.time() + 300
        started = time.monotonic()
        for number, scorer in enumerate(scorers):
            tick = self._ticks.message(CLUSTER, scorer, new_run_id(), expires)
            # As beat sends them: every scorer has its own moment.
            time.sleep(max(0.0, started + number / PACE - time.monotonic()))
            self.redis.lpush(keys.spoke_queue(CLUSTER), tick.replace("dsf.", f"{prefix}."))


@contextmanager
def broker(url: str, scorers: list[str], series: int, results: int) -> Iterator[Broker]:
    """A Redis and an agent that runs these scorers."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(RedisServer())
        summaries = [summary(name, url, series, results).model_dump(by_alias=True) for name in scorers]
        (folder / "config.json").write_text(json.dumps(summaries))
        (folder / "key").write_text(derive_key(MASTER, CLUSTER, 1).dump())
        (folder / "done").touch()
        environment = os.environ | {
            "BENCH_DONE": str(folder / "done"),
            "DSF_CLUSTER": CLUSTER,
            "DSF_REDIS_URL": server.url,
            "DSF_AGENT_CONFIG": str(folder / "config.json"),
            "DSF_AGENT_SPOOL_DIR": str(folder / "spool"),
            "DSF_AGENT_METRICS_HOST": "127.0.0.1",
            "DSF_AGENT_METRICS_PORT": "0",
            "DSF_AGENT_READINESS_FILE": str(folder / "ready"),
            "DSF_SIGNING_KEY_FILE": str(folder / "key"),
        }
        log = stack.enter_context((folder / "log").open("wb"))
        command = [sys.executable, "-m", "bench.stages", "--agent"]
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)
        try:
            wait_for((folder / "ready").exists, 30, "the agent to be ready")
            yield Broker(server, process, folder / "done")
        finally:
            process.terminate()
            process.wait(30)


def cycle(url: str, rounds: int) -> dict[str, Any]:
    """CPU and traffic of whole cycles against chains that do nothing, in turns."""
    scorers = [f"scorer-{number}" for number in range(25)]
    turns: list[tuple[float, float]] = []
    with broker(url, scorers, 100, 10) as running:
        result = 0
        for _ in range(2):
            result = running.cycles(scorers)
            running.chains(scorers)
        traffic = 0
        for _ in range(rounds):
            start, bytes_before = running.cpu(), running.traffic()
            for _ in range(4):
                running.cycles(scorers)
            middle = running.cpu()
            traffic += running.traffic() - bytes_before
            for _ in range(4):
                running.chains(scorers)
            turns.append((middle - start, running.cpu() - middle))
    count = 4 * len(scorers)
    return {
        "cycle_ms": 1000 * statistics.median(one for one, _ in turns) / count,
        "chain_ms": 1000 * statistics.median(other for _, other in turns) / count,
        "ratio": statistics.median(one / other for one, other in turns),
        "traffic_bytes": traffic / (count * rounds),
        "result_bytes": result,
    }


def report(found: dict[str, Any]) -> bool:
    """Print the tables; says whether every limit is met."""
    console = Console()
    met = True

    def verdict(value: float, limit: float) -> str:
        nonlocal met
        met &= value <= limit
        return "ok" if value <= limit else "MISSED"

    table = Table(
        "fetch + score", "moving bytes, CPU ms", "stages, CPU ms", "ratio", "limit", "", title="CPU of the stages"
    )
    for row in found["stages"]:
        name = f"{row['series']} x {POINTS}, {row['results']} results"
        limit = CPU_LIMITS[row["series"]] if row["results"] == 10 else None
        last = ("", "") if limit is None else (f"{limit}", verdict(row["ratio"], limit))
        table.add_row(name, f"{row['move_ms']:.2f}", f"{row['cycle_ms']:.2f}", f"{row['ratio']:.2f}", *last)
    console.print(table)
    table = Table("series", "at rest, MB", "peak, + MB", "after, + MB", "limit", "", title="Memory of the stages")
    for row in found["stages"]:
        if row["results"] == 10:
            sizes = [f"{row[name] / 2**20:.0f}" for name in ("rest_bytes", "peak_bytes", "after_bytes")]
            table.add_row(str(row["series"]), *sizes, "+ 130", verdict(row["peak_bytes"], MEMORY_LIMIT))
    console.print(table)
    row = found["cycle"]
    table = Table("whole cycle, agent + Redis, 100 x 61", "cycle", "against", "", "limit", "")
    cpu = (f"{row['cycle_ms']:.2f} ms", f"{row['chain_ms']:.2f} ms", f"{row['ratio']:.2f} x")
    table.add_row(
        "CPU, against a chain of three tasks that do nothing",
        *cpu,
        f"{CYCLE_LIMIT} x",
        verdict(row["ratio"], CYCLE_LIMIT),
    )
    extra = row["traffic_bytes"] - row["result_bytes"]
    sizes = [f"{row['traffic_bytes']:.0f} B", f"{row['result_bytes']} B", f"+ {extra:.0f} B"]
    table.add_row(
        "broker traffic, against the result itself", *sizes, f"+ {TRAFFIC_LIMIT} B", verdict(extra, TRAFFIC_LIMIT)
    )
    console.print(table)
    return met


def main() -> int:
    """Measure, print, and say by the exit code whether every limit is met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures into this file")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter measurements")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--agent", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--stages", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return 0
    if options.agent:
        return agent()
    if options.stages:
        url, *numbers = options.stages
        print(json.dumps(stages(url, *(int(number) for number in numbers[:3]), float(numbers[3]))))
        return 0
    rounds, seconds = (3, 0.3) if options.quick else (9, 0.7)
    with peers() as url:
        found: dict[str, Any] = {
            "stages": [
                stages_apart(url, series, results, rounds, seconds) for series in SERIES for results in (10, series)
            ],
            "cycle": cycle(url, 3 if options.quick else 8),
        }
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0 if report(found) else 1


if __name__ == "__main__":
    sys.exit(main())
