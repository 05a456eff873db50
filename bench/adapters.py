"""Converts the JSON of benches that write their own rows to rows of the common table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.common import Figure


def make_scorer_figures(rows: list[dict[str, Any]]) -> list[Figure]:
    """Return rows for the scorer library beside a bare endpoint."""
    return [
        Figure(
            f"scoring request to the library, {row['series']} x {row['samples']} samples",
            f"{row['library_ms']:.2f} ms",
            row["ratio"],
            "x",
            f"bare FastAPI endpoint that does the same, {row['bare_ms']:.2f} ms",
            upper_limit=row["limit"],
        )
        for row in rows
    ]


def make_optimizer_figures(rows: list[dict[str, Any]]) -> list[Figure]:
    """Return rows for the optimiser beside other solvers, and for the distance of its plan from the best one."""
    figures = []
    for row in rows:
        if (http := row.get("http")) is not None:
            figures += _make_http_figures(row["size"], http)
            continue
        dsf_result = row["dsf"]
        other_solvers = [
            f"{name}: {result['objective'] if result['objective'] is None else format(result['objective'], '.7g')} "
            f"in {result['seconds']:.1f} s, {result['memory_mib']:.0f} MiB"
            for label, name in (("cbc", "CBC"), ("highs", "HiGHS"), ("cpsat", "CP-SAT"))
            if (result := row.get(label)) is not None
        ]
        against = "; ".join(other_solvers) or "nothing: too large for the others"
        measured = f"{dsf_result['objective']:.7g} in {dsf_result['seconds']:.1f} s, {dsf_result['memory_mib']:.0f} MiB"
        name = f"optimiser, {row['size']} (workloads x clusters x configurations)"
        figures.append(Figure(name, measured, 100 * dsf_result["gap"], "% from the bound", against))
    return figures


def _make_http_figures(size: str, measured: dict[str, Any]) -> list[Figure]:
    dry, solver, again = (measured[f"{name}_seconds"] * 1000 for name in ("dry_run", "solver", "apply_again"))
    return [
        Figure(
            f"/optimize end to end, {size}, dry run", f"{dry:.0f} ms", dry, "ms", f"of it the solver: {solver:.0f} ms"
        ),
        Figure(
            f"/optimize end to end, {size}, put in force",
            f"{measured['objects']} objects in {measured['apply_seconds']:.2f} s",
            measured["apply_seconds"],
            "s",
            f"again, when nothing changed: {again:.0f} ms",
        ),
    ]


def make_kube_figures(result: dict[str, Any]) -> list[Figure]:
    """Return rows for the hub on a real API server."""
    figures = []
    if (longest := result.get("apply_to_score_longest")) is not None:
        median = f"{result['apply_to_score_seconds']:.2f} s (-{longest:.2f})"
        figures.append(
            Figure("Kubernetes: apply to first score on two clusters", median, longest, "s max", upper_limit=3.0)
        )
    if (writes := result.get("writes_per_cycle")) is not None:
        figures.append(
            Figure("Kubernetes: API writes per unchanged cycle", f"{writes:.3f}", writes, "", upper_limit=0.2)
        )
    if (fleet := result.get("fleet")) is not None:
        name = f"Kubernetes: a mask is on all of {fleet['clusters']:,} clusters"
        measured = f"{fleet['mask_distribution_seconds']:.1f} s, hub {fleet['hub_memory_mb']:.0f} MB"
        figures.append(Figure(name, measured, fleet["mask_distribution_seconds"], "s"))
    return figures


#: Functions by the name of the bench. Other benches write {"figures": [...], "details": ...}.
ADAPTERS: dict[str, Callable[[Any], list[Figure]]] = {
    "scorer_overhead": make_scorer_figures,
    "optimizer": make_optimizer_figures,
    "kube": make_kube_figures,
}


def read(name: str, document: Any) -> tuple[list[Figure], Any]:
    """Return figures and details from the JSON of a bench."""
    if name in ADAPTERS:
        return ADAPTERS[name](document), document
    return [Figure(**fields) for fields in document["figures"]], document["details"]
