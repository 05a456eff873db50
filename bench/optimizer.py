"""Compare the optimizer with other solvers: objective, time and memory of their plans.

    python bench/optimizer.py [--size [mixed-]WxCxK]... [--seconds S] [--http WxCxK]... [--json FILE]

A size is workloads x clusters x configurations. Capacity is scarce in all problems; those of `mixed-` sizes have
several kinds of resources, replicas and weights. Each solve has its own process, so that its memory can be measured.

The other solvers are CBC and HiGHS through PuLP, and CP-SAT through OR-Tools. They get the same integer program with
every option, as plain Python users would write it. Their time limit is the same, and includes the time to build the
program. They do not get the largest sizes, because they could not build the program in that time. A solver that is not
installed is skipped. OR-Tools is not in `uv.lock`, because it requires an older protobuf; to include it, run
`scripts/uv run --isolated --all-extras --with ortools python -m bench.optimizer`.

With `--http`, the bench also measures how long `POST /optimize` takes with a real API server. This requires the
programs of `scripts/controlplane`.
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
#: Maximum number of options (workloads x clusters x configurations) of the problems that other solvers get.
MAX_OPTIONS_FOR_OTHERS = 20_000


def read_highest_memory_mib(who: int) -> float:
    """Return the highest resident memory so far in MiB, of `resource.RUSAGE_SELF` or `resource.RUSAGE_CHILDREN`."""
    # Linux counts in KiB, macOS in bytes.
    return resource.getrusage(who).ru_maxrss / (1024 * 1024 if sys.platform == "darwin" else 1024)


def solve_with_dsf(problem: PlanInput, seconds: float) -> dict[str, Any]:
    """Solve a problem with `dsf.optimizer`, and return the figures of its plan."""
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
class IntegerProgram:
    """The integer program, independent of solvers.

    Its variables are the number of replicas of each option, and a switch for each configuration.
    """

    #: For each option: indexes of the workload and of the configuration, value of one replica, maximum replicas.
    options: list[tuple[int, int, float, int]]
    #: For each configuration: index of its cluster, and amounts by kind.
    configurations: list[tuple[int, dict[str, int]]]
    problem: PlanInput


def build_integer_program(problem: PlanInput) -> IntegerProgram:
    """Return the program with every option that fits on its cluster and does not lower the objective."""
    options, configurations = [], []
    for cluster_index, cluster in enumerate(problem.clusters):
        item_values = {table.score: table.items for table in cluster.scores}
        for configuration in cluster.configurations:
            for workload_index, workload in enumerate(problem.workloads):
                item = f"{workload.app};{configuration.device}"
                value = sum(
                    preference.weight * item_values[preference.score][item] for preference in problem.preferences
                )
                replica_limits = [
                    configuration.supply.get(kind, 0) // amount for kind, amount in workload.request.items()
                ]
                limit = min(workload.replicas, workload.per_cluster or workload.replicas, *replica_limits)
                if value >= 0 and limit:
                    options.append((workload_index, len(configurations), value, limit))
            configurations.append((cluster_index, dict(configuration.supply)))
    return IntegerProgram(options, configurations, problem)


def solve_with_pulp(program: IntegerProgram, remaining_seconds: Callable[[], float], solver: str) -> float | None:
    """Return the objective that a solver of PuLP reaches; None if it finds no plan in time."""
    import pulp

    pulp_problem = pulp.LpProblem("placement", pulp.LpMaximize)
    switches = [pulp.LpVariable(f"y_{number}", cat="Binary") for number in range(len(program.configurations))]
    replicas = [
        pulp.LpVariable(f"x_{number}", 0, limit, cat="Integer") for number, (*_, limit) in enumerate(program.options)
    ]
    pulp_problem.setObjective(
        pulp.lpSum(value * variable for (_, _, value, _), variable in zip(program.options, replicas, strict=True))
    )
    for expression, upper_bound in iterate_constraints(program, replicas, switches, pulp.lpSum):
        pulp_problem += expression <= upper_bound
    pulp_problem.solve(pulp.getSolver(solver, msg=False, timeLimit=remaining_seconds()))
    has_plan = pulp_problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    return float(pulp.value(pulp_problem.objective) or 0) if has_plan else None


def solve_with_cpsat(program: IntegerProgram, remaining_seconds: Callable[[], float]) -> float | None:
    """Return the objective that CP-SAT of OR-Tools reaches; None if it finds no plan in time.

    CP-SAT uses one thread, as the other solvers do.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    switches = [model.new_bool_var(f"y_{number}") for number in range(len(program.configurations))]
    replicas = [model.new_int_var(0, limit, f"x_{number}") for number, (*_, limit) in enumerate(program.options)]
    for expression, upper_bound in iterate_constraints(program, replicas, switches, sum):
        model.add(expression <= upper_bound)
    # CP-SAT accepts only whole numbers, and weights have up to four decimals.
    model.maximize(
        sum(
            round(value * 10_000) * variable
            for (_, _, value, _), variable in zip(program.options, replicas, strict=True)
        )
    )
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = remaining_seconds()
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    return solver.objective_value / 10_000 if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None


def iterate_constraints(
    program: IntegerProgram, replicas: list[Any], switches: list[Any], add_up: Callable[[list[Any]], Any]
) -> Any:
    """Yield every constraint as an expression and its upper bound.

    `replicas` and `switches` are the variables of a solver, and `add_up` is the solver's function for sums.
    """
    replicas_by_workload: dict[int, list[Any]] = {}
    #: By configuration and kind.
    requested_amounts: dict[tuple[int, str], list[Any]] = {}
    switches_by_cluster: dict[int, list[Any]] = {}
    for (workload_index, configuration_index, _, limit), variable in zip(program.options, replicas, strict=True):
        workload = program.problem.workloads[workload_index]
        replicas_by_workload.setdefault(workload_index, []).append(variable)
        for kind, amount in workload.request.items():
            requested_amounts.setdefault((configuration_index, kind), []).append(amount * variable)
        # An option has no replicas if its configuration is switched off.
        yield variable - limit * switches[configuration_index], 0
    for workload_index, variables in replicas_by_workload.items():
        yield add_up(variables), program.problem.workloads[workload_index].replicas
    for (configuration_index, kind), amounts in requested_amounts.items():
        supply = program.configurations[configuration_index][1].get(kind, 0)
        yield add_up(amounts) - supply * switches[configuration_index], 0
    for (cluster_index, _), switch in zip(program.configurations, switches, strict=True):
        switches_by_cluster.setdefault(cluster_index, []).append(switch)
    # A cluster has at most one configuration.
    for cluster_switches in switches_by_cluster.values():
        yield add_up(cluster_switches), 1


#: Other solvers by name: the package that each requires, and its function.
OTHER_SOLVERS = {
    "cbc": ("pulp", functools.partial(solve_with_pulp, solver="PULP_CBC_CMD")),
    "highs": ("pulp", functools.partial(solve_with_pulp, solver="HiGHS")),
    "cpsat": ("ortools", solve_with_cpsat),
}


def solve_with_other(name: str, problem: PlanInput, seconds: float) -> dict[str, Any]:
    """Solve a problem with one of `OTHER_SOLVERS`. The time limit includes building the program."""
    started = time.perf_counter()
    program = build_integer_program(problem)
    objective = OTHER_SOLVERS[name][1](program, lambda: max(1.0, seconds - (time.perf_counter() - started)))
    return {"seconds": time.perf_counter() - started, "objective": objective}


def solve_one(size: str, solver: str, seconds: float) -> dict[str, Any]:
    """Solve in this process, and return the figures.

    `memory_mib` is the growth of this process during the solve, plus the memory of the solver's own process if it has
    one. `memory_before_mib` is the memory of this process before the solve.
    """
    problem = make_sized_problem(size)
    memory_before = read_highest_memory_mib(resource.RUSAGE_SELF)
    times_before = os.times()
    row = solve_with_dsf(problem, seconds) if solver == "dsf" else solve_with_other(solver, problem, seconds)
    times_after = os.times()
    row["cpu_seconds"] = sum(times_after[:4]) - sum(times_before[:4])
    row["memory_mib"] = (
        read_highest_memory_mib(resource.RUSAGE_SELF)
        - memory_before
        + read_highest_memory_mib(resource.RUSAGE_CHILDREN)
    )
    row["memory_before_mib"] = memory_before
    return row


def solve_in_process(size: str, solver: str, seconds: float) -> dict[str, Any] | None:
    """Return the figures of a solve in a separate process; None if that process fails."""
    command = [sys.executable, __file__, "--one", solver, "--size", size, "--seconds", str(seconds)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        print(f"{size} {solver}: {process.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    # Only the last line is JSON, because some solvers also print to standard output.
    result: dict[str, Any] = json.loads(process.stdout.strip().splitlines()[-1])
    return result


def measure_http(size: str, seconds: float) -> dict[str, Any] | None:
    """Return the durations of requests to `/optimize`; None if the programs of an API server are missing."""
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
    """Return a row of the table that `main` prints."""
    objective = "none" if measured["objective"] is None else f"{measured['objective']:.7g}"
    text = f"{size:>16} {solver:>6} {measured['seconds']:7.2f} s  {measured['cpu_seconds']:7.2f} s  {objective:>9}"
    return f"{text}  {measured['memory_mib']:5.0f} MiB" + (f"  {measured['gap']:6.2%}" if "gap" in measured else "")


def main() -> int:
    """Solve problems of all sizes with all solvers, and print the table. Returns 1 if a solve of dsf or HTTP failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--size", action="append", help="workloads x clusters x configurations, such as 100x50x3; may be repeated"
    )
    parser.add_argument("--seconds", type=float, help="time limit of each solve in seconds")
    parser.add_argument("--http", action="append", help="time /optimize end to end for this size; may be repeated")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--one", choices=("dsf", *OTHER_SOLVERS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(solve_one(arguments.size[0], arguments.one, arguments.seconds)))
        return 0
    installed_solvers = [name for name, (package, _) in OTHER_SOLVERS.items() if importlib.util.find_spec(package)]
    print(f"{'instance':>16} {'solver':>6} {'time':>9}  {'CPU':>9}  {'objective':>9}  {'memory':>9}  gap to the bound")
    rows = []
    has_failed = False
    for size in arguments.size or SIZES:
        seconds = arguments.seconds or SIZES.get(size, 20)
        workloads, clusters, configurations = (int(number) for number in size.rpartition("-")[2].split("x"))
        has_few_options = workloads * clusters * configurations <= MAX_OPTIONS_FOR_OTHERS
        solvers = ("dsf", *(installed_solvers if has_few_options else ()))
        rows_by_solver = {name: solve_in_process(size, name, seconds) for name in solvers}
        for name, row in rows_by_solver.items():
            if row is not None:
                print(format_row(size, name, row), flush=True)
        if rows_by_solver["dsf"] is None:
            has_failed = True
            continue
        rows.append({"size": size, "time_limit": seconds, **rows_by_solver})
    for size in arguments.http or ():
        http_durations = measure_http(size, arguments.seconds or SIZES.get(size, 20))
        if http_durations is None:
            has_failed = True
            continue
        rows.append({"size": size, "http": http_durations})
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
