"""How good a plan is after how long, and how much memory it takes, side by side with other solvers.

    python bench/optimizer.py [--size [mixed-]WxCxK ...] [--seconds S] [--http WxCxK ...] [--json FILE]

Instances of workloads x clusters x configurations with scarce capacity; `mixed-` ones have several kinds of resources,
replicas and weights. Each is solved in a process of its own so that memory is that of one solve. The others get the
same integer program with every option, as plain Python users would write it, and the same time, which includes building
it: CBC and HiGHS through PuLP, CP-SAT through OR-Tools. The largest sizes are beyond what they can build in
that time. A solver that is not installed is left out; OR-Tools is not in `uv.lock`, whose protobuf is newer than it
takes (`scripts/uv run --isolated --all-extras --with ortools python -m bench.optimizer`).

With `--http`, also how long `POST /optimize` takes for such an instance, with a real API server behind it; that needs
the programs of `scripts/controlplane`.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dsf.optimizer.model import PlanInput, SearchLimits
from dsf.optimizer.solve import solve
from tests.support.planproblems import make_sized_problem

#: Time limit in seconds by size; about four minutes in total.
SIZES = {
    "10x5x3": 5,
    "mixed-20x10x3": 5,
    "100x50x3": 10,
    "mixed-100x50x3": 10,
    "500x200x3": 20,
    "mixed-500x200x3": 20,
    "1000x1000x3": 40,
}
#: Maximum options of the problems that other solvers get.
MOST_OPTIONS = 20_000


def read_highest_memory(process_kind: int) -> float:
    """Return the highest resident memory so far."""
    # Linux counts in KiB, macOS in bytes.
    return resource.getrusage(process_kind).ru_maxrss / (1024 * 1024 if sys.platform == "darwin" else 1024)


def solve_by_us(problem: PlanInput, seconds: float) -> dict[str, Any]:
    """Solve a problem with `solve`, from the problem's objects to the plan's objects."""
    started = time.perf_counter()
    plan = solve(problem, SearchLimits(time_limit=seconds))
    return {
        "seconds": time.perf_counter() - started,
        "objective": plan.objective,
        "bound": plan.bound,
        "gap": plan.gap,
        "status": str(plan.status),
        "ties_exact": plan.ties_exact,
        "unplaced": len(plan.unplaced),
    }


@dataclass(frozen=True)
class Model:
    """The integer program in plain terms: variables are the replicas of each option, and a switch for each
    configuration.
    """

    #: For each option: number of the workload and of the configuration, value of one replica, maximum replicas.
    options: list[tuple[int, int, float, int]]
    #: For each configuration: number of its cluster, and amounts by kind.
    columns: list[tuple[int, dict[str, int]]]
    problem: PlanInput


def model(problem: PlanInput) -> Model:
    """Return the program with every option that fits and does not lower the sum."""
    options, columns = [], []
    for number, cluster in enumerate(problem.clusters):
        tables = {table.score: table.items for table in cluster.scores}
        for configuration in cluster.configurations:
            for row, workload in enumerate(problem.workloads):
                item = f"{workload.app};{configuration.device}"
                value = sum(preference.weight * tables[preference.score][item] for preference in problem.preferences)
                replica_limits = [
                    configuration.supply.get(kind, 0) // amount for kind, amount in workload.request.items()
                ]
                limit = min(workload.replicas, workload.per_cluster or workload.replicas, *replica_limits)
                if value >= 0 and limit:
                    options.append((row, len(columns), value, limit))
            columns.append((number, dict(configuration.supply)))
    return Model(options, columns, problem)


def by_pulp(built: Model, remaining_seconds: Callable[[], float], solver: str) -> float | None:
    """Return the sum that PuLP reaches with `solver`, a name of PuLP's; None without a plan in time."""
    import pulp

    program = pulp.LpProblem("placement", pulp.LpMaximize)
    switches = [pulp.LpVariable(f"y_{number}", cat="Binary") for number in range(len(built.columns))]
    count = [
        pulp.LpVariable(f"x_{number}", 0, limit, cat="Integer") for number, (*_, limit) in enumerate(built.options)
    ]
    program.setObjective(
        pulp.lpSum(value * variable for (_, _, value, _), variable in zip(built.options, count, strict=True))
    )
    for expression, bound in constraints(built, count, switches, pulp.lpSum):
        program += expression <= bound
    program.solve(pulp.getSolver(solver, msg=False, timeLimit=remaining_seconds()))
    has_plan = program.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    return float(pulp.value(program.objective) or 0) if has_plan else None


def cpsat(built: Model, remaining_seconds: Callable[[], float]) -> float | None:
    """Return the sum of OR-Tools' CP-SAT on one thread, like the others; None without a plan in time."""
    from ortools.sat.python import cp_model

    program = cp_model.CpModel()
    switches = [program.new_bool_var(f"y_{number}") for number in range(len(built.columns))]
    count = [program.new_int_var(0, limit, f"x_{number}") for number, (*_, limit) in enumerate(built.options)]
    for expression, upper_bound in constraints(built, count, switches, sum):
        program.add(expression <= upper_bound)
    # The solver takes whole numbers, and weights have up to four decimals.
    program.maximize(
        sum(round(value * 10_000) * variable for (_, _, value, _), variable in zip(built.options, count, strict=True))
    )
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = remaining_seconds()
    solver.parameters.num_workers = 1
    status = solver.solve(program)
    return solver.objective_value / 10_000 if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None


def constraints(built: Model, count: list[Any], switches: list[Any], total: Callable[[list[Any]], Any]) -> Any:
    """Yield every constraint as an expression and its maximum."""
    by_row: dict[int, list[Any]] = {}
    by_amount: dict[tuple[int, str], list[Any]] = {}
    by_cluster: dict[int, list[Any]] = {}
    for (row, column, _, limit), variable in zip(built.options, count, strict=True):
        workload = built.problem.workloads[row]
        by_row.setdefault(row, []).append(variable)
        for kind, amount in workload.request.items():
            by_amount.setdefault((column, kind), []).append(amount * variable)
        yield variable - limit * switches[column], 0
    for row, ones in by_row.items():
        yield total(ones), built.problem.workloads[row].replicas
    for (column, kind), ones in by_amount.items():
        yield total(ones) - built.columns[column][1].get(kind, 0) * switches[column], 0
    for (cluster, _), switch in zip(built.columns, switches, strict=True):
        by_cluster.setdefault(cluster, []).append(switch)
    for ones in by_cluster.values():
        yield total(ones), 1


#: Other solvers: the package that each needs, and the function.
OTHERS = {
    "cbc": ("pulp", functools.partial(by_pulp, solver="PULP_CBC_CMD")),
    "highs": ("pulp", functools.partial(by_pulp, solver="HiGHS")),
    "cpsat": ("ortools", cpsat),
}


def solve_by_other(name: str, problem: PlanInput, seconds: float) -> dict[str, Any]:
    """Solve the same program with another solver."""
    started = time.perf_counter()
    built = model(problem)
    objective = OTHERS[name][1](built, lambda: max(1.0, seconds - (time.perf_counter() - started)))
    return {"seconds": time.perf_counter() - started, "objective": objective}


def solve_one(size: str, solver: str, seconds: float) -> dict[str, Any]:
    """Solve in this process; the memory is the growth beyond that of the problem."""
    problem = make_sized_problem(size)
    memory_before = read_highest_memory(resource.RUSAGE_SELF)
    started = os.times()
    row = solve_by_us(problem, seconds) if solver == "dsf" else solve_by_other(solver, problem, seconds)
    times_after = os.times()
    row["cpu_seconds"] = sum(times_after[:4]) - sum(started[:4])
    row["memory_mb"] = (
        read_highest_memory(resource.RUSAGE_SELF) - memory_before + read_highest_memory(resource.RUSAGE_CHILDREN)
    )
    row["instance_mb"] = memory_before
    return row


def solve_in_process(size: str, solver: str, seconds: float) -> dict[str, Any] | None:
    """Solve in a separate process; None if it fails."""
    command = [sys.executable, __file__, "--one", solver, "--size", size, "--seconds", str(seconds)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        print(f"{size} {solver}: {process.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    # Some solvers print on standard output.
    result: dict[str, Any] = json.loads(process.stdout.strip().splitlines()[-1])
    return result


def measure_http(size: str, seconds: float) -> dict[str, Any] | None:
    """Measure `/optimize` from request to response; None without the programs of an API server."""
    from bench.optimizerhttp import measure
    from tests.support.controlplane import ControlPlaneMissingError

    try:
        measured = measure(size, seconds)
    except ControlPlaneMissingError as error:
        print(f"{size} over HTTP: {error}", file=sys.stderr)
        return None
    print(
        f"{size:>12}  /optimize: dry run {measured['dry_run_seconds']:.3f} s "
        f"(solver {measured['solver_seconds']:.3f} s), "
        f"{measured['objects']} objects written in {measured['apply_seconds']:.2f} s, unchanged "
        f"{measured['apply_again_seconds']:.3f} s",
        flush=True,
    )
    return measured


def format_row(size: str, solver: str, measured: dict[str, Any]) -> str:
    """Return a row of the table."""
    objective = "none" if measured["objective"] is None else f"{measured['objective']:.7g}"
    text = f"{size:>16} {solver:>6} {measured['seconds']:7.2f} s  {measured['cpu_seconds']:7.2f} s  {objective:>9}"
    return f"{text}  {measured['memory_mb']:6.0f} MB" + (f"  {measured['gap']:6.2%}" if "gap" in measured else "")


def main() -> int:
    """Solve the sizes one after the other, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", action="append", help="workloads x clusters x configurations, such as 100x50x3")
    parser.add_argument("--seconds", type=float, help="time limit of each solve")
    parser.add_argument("--http", action="append", help="time /optimize end to end for this size; may be repeated")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--one", choices=("dsf", *OTHERS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(solve_one(arguments.size[0], arguments.one, arguments.seconds)))
        return 0
    installed = [name for name, (package, _) in OTHERS.items() if importlib.util.find_spec(package)]
    print(f"{'instance':>16} {'solver':>6} {'time':>9}  {'CPU':>9}  {'objective':>9}  {'memory':>9}  from the bound")
    rows = []
    has_failed = False
    for size in arguments.size or SIZES:
        seconds = arguments.seconds or SIZES.get(size, 20)
        workloads, clusters, configurations = (int(number) for number in size.rpartition("-")[2].split("x"))
        few = workloads * clusters * configurations <= MOST_OPTIONS
        rows_by_solver = {name: solve_in_process(size, name, seconds) for name in ("dsf", *(installed if few else ()))}
        for name, row in rows_by_solver.items():
            if row is not None:
                print(format_row(size, name, row), flush=True)
        if rows_by_solver["dsf"] is None:
            has_failed = True
            continue
        rows.append({"size": size, "time_limit": seconds, **rows_by_solver})
    for size in arguments.http or ():
        rows_by_solver = measure_http(size, arguments.seconds or SIZES.get(size, 20))
        if rows_by_solver is None:
            has_failed = True
            continue
        rows.append({"size": size, "http": rows_by_solver})
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
