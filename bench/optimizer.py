"""How good a plan is after how long, and how much memory it takes, side by side with PuLP and CBC.

    python bench/optimizer.py [--size WxCxK ...] [--seconds S] [--http WxCxK ...] [--json FILE]

Instances of workloads x clusters x configurations with scarce capacity, each solved in a process of its own so that
memory is that of one solve. PuLP gets the same integer program with every option, as plain Python users would write
it, and the same time; the largest sizes are beyond what it can build in that time. Needs the extra `optimizer` and, for
the comparison, pulp; without it the column stays empty.

With `--http`, also how long `POST /optimize` takes for such an instance, with a real API server behind it; that needs
the programs of `scripts/controlplane`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dsf.optimizer.model import Limits, Problem
from dsf.optimizer.solve import solve
from tests.unit.optimizer.generator import instance

#: Size and time limit in seconds: about two minutes in total.
SIZES = {"10x5x3": 5, "100x50x3": 10, "500x200x3": 20, "1000x1000x3": 40}
#: Most options that are given to PuLP.
PULP_OPTIONS = 20_000


def megabytes(who: int) -> float:
    """Highest resident memory so far."""
    # Linux counts in KiB, macOS in bytes.
    return resource.getrusage(who).ru_maxrss / (1024 * 1024 if sys.platform == "darwin" else 1024)


def ours(problem: Problem, seconds: float) -> dict[str, Any]:
    """`solve`, from the problem as objects to the plan as objects."""
    started = time.perf_counter()
    plan = solve(problem, Limits(time_limit=seconds))
    return {
        "seconds": time.perf_counter() - started,
        "objective": plan.objective,
        "bound": plan.bound,
        "gap": plan.gap,
        "status": str(plan.status),
        "ties_exact": plan.ties_exact,
        "unplaced": len(plan.unplaced),
    }


def pulps(problem: Problem, seconds: float) -> dict[str, Any]:
    """The same program by PuLP and CBC; the time includes building it."""
    import pulp

    started = time.perf_counter()
    model = pulp.LpProblem("placement", pulp.LpMaximize)
    used, options, by_workload = {}, [], defaultdict(list)
    for cluster in problem.clusters:
        items = cluster.scores[0].items
        switches = []
        for number, one in enumerate(cluster.configurations):
            switch = pulp.LpVariable(f"y_{cluster.name}_{number}", cat="Binary")
            switches.append(switch)
            column = []
            for workload in problem.workloads:
                if workload.request["gpu"] <= one.supply["gpu"]:
                    option = pulp.LpVariable(f"x_{cluster.name}_{number}_{workload.name}", cat="Binary")
                    model += option <= switch
                    column.append(workload.request["gpu"] * option)
                    options.append(items[f"{workload.app};{one.device}"] * option)
                    by_workload[workload.name].append(option)
            model += pulp.lpSum(column) <= one.supply["gpu"] * switch
            used[cluster.name] = switches
        model += pulp.lpSum(switches) <= 1
    for choices in by_workload.values():
        model += pulp.lpSum(choices) <= 1
    model.setObjective(pulp.lpSum(options))
    left = max(1.0, seconds - (time.perf_counter() - started))
    model.solve(pulp.PULP_CBC_CMD(msg=False, timeLimit=left))
    found = model.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    return {
        "seconds": time.perf_counter() - started,
        "objective": float(pulp.value(model.objective) or 0) if found else None,
        "status": pulp.LpSolution[model.sol_status],
    }


def one(size: str, solver: str, seconds: float) -> dict[str, Any]:
    """One solve in this process; memory is what it added to that of the instance."""
    problem = instance(*(int(number) for number in size.split("x")))
    before = megabytes(resource.RUSAGE_SELF)
    row = ours(problem, seconds) if solver == "ours" else pulps(problem, seconds)
    row["memory_mb"] = megabytes(resource.RUSAGE_SELF) - before + megabytes(resource.RUSAGE_CHILDREN)
    row["instance_mb"] = before
    return row


def apart(size: str, solver: str, seconds: float) -> dict[str, Any] | None:
    """The same in a process of its own; None when it fails, as without pulp."""
    command = [sys.executable, __file__, "--one", solver, "--size", size, "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{size} {solver}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    # HiGHS sometimes says something on standard output.
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def over_http(size: str, seconds: float) -> dict[str, Any] | None:
    """`/optimize` end to end; None without the programs of an API server."""
    from bench.optimizerhttp import measure
    from tests.support.controlplane import ControlPlaneMissingError

    try:
        found = measure(size, seconds)
    except ControlPlaneMissingError as error:
        print(f"{size} over HTTP: {error}", file=sys.stderr)
        return None
    print(
        f"{size:>12}  /optimize: dry run {found['dry_run_seconds']:.3f} s (solver {found['solver_seconds']:.3f} s), "
        f"{found['objects']} objects written in {found['apply_seconds']:.2f} s, unchanged "
        f"{found['apply_again_seconds']:.3f} s",
        flush=True,
    )
    return found


def line(size: str, mine: dict[str, Any], pulp: dict[str, Any] | None) -> str:
    """One row of the table."""
    gap = f"{mine['gap']:.2%}"
    text = f"{size:>12}  {mine['seconds']:7.2f} s  {mine['objective']:9g}  {gap:>6}  {mine['memory_mb']:6.0f} MB"
    if pulp is None:
        return f"{text}  {'-':>9}"
    objective = "none" if pulp["objective"] is None else f"{pulp['objective']:g}"
    return f"{text}  {pulp['seconds']:7.2f} s  {objective:>9}  {pulp['memory_mb']:6.0f} MB  {pulp['status']}"


def main() -> int:
    """Run the sizes one after the other and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", action="append", help="workloads x clusters x configurations, such as 100x50x3")
    parser.add_argument("--seconds", type=float, help="time limit of each solve")
    parser.add_argument("--http", action="append", help="time /optimize end to end for this size; may be repeated")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--one", choices=("ours", "pulp"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(arguments.size[0], arguments.one, arguments.seconds)))
        return 0
    print(f"{'':>12}  {'dsf, HiGHS':^40}  {'PuLP, CBC':^40}")
    print(f"{'instance':>12}  {'time':>9}  {'objective':>9}  {'gap':>6}  {'memory':>9}", end="")
    print(f"  {'time':>9}  {'objective':>9}  {'memory':>9}  status")
    rows = []
    failed = False
    for size in arguments.size or SIZES:
        seconds = arguments.seconds or SIZES.get(size, 20)
        workloads, clusters, configurations = (int(number) for number in size.split("x"))
        mine = apart(size, "ours", seconds)
        pulp = apart(size, "pulp", seconds) if workloads * clusters * configurations <= PULP_OPTIONS else None
        if mine is None:
            failed = True
            continue
        print(line(size, mine, pulp), flush=True)
        rows.append({"size": size, "time_limit": seconds, "dsf": mine, "pulp": pulp})
    for size in arguments.http or ():
        found = over_http(size, arguments.seconds or SIZES.get(size, 20))
        if found is None:
            failed = True
            continue
        rows.append({"size": size, "http": found})
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
