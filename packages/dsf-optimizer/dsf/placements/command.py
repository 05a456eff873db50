"""`dsf placement`: explains why a Placement selects its clusters."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from dsf.cli.output import Format, OutputOption, emit, flatten, make_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dsf.placements.explanation import (
        CellView,
        PlacementList,
        PlacementView,
        PrioritizerView,
        RankedCluster,
        WhatIf,
    )

_WHAT_IF_PATTERN = re.compile(r"(?P<cluster>[^=/\s]+)=(?P<value>-?\d{1,9}|none)")
#: Standing of a value that counts 0 -> text in the table.
_STANDING_TEXTS = {"missing": "no score", "expired": "expired", "no-item": "no such item", "unknown": "not known"}


def add(app: typer.Typer) -> None:
    """Add the command to `dsf`."""
    app.command(rich_help_panel="Look")(placement)


def placement(
    name: Annotated[str | None, typer.Argument(help="Name of the Placement; without it, all are listed.")] = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Its namespace; required if several have a Placement of this name."),
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if", metavar="CLUSTER=VALUE", help="Evaluate with this score, or `none`; may be repeated."
        ),
    ] = None,
    score: Annotated[
        str | None,
        typer.Option("--score", metavar="RESOURCE/ITEM", help="Score of --what-if, if the Placement has several."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Clusters in the table, 0 for all.")] = 50,
    output: OutputOption = Format.TABLE,
) -> None:
    """Explain a Placement's clusters: weight x score of each prioritizer, filters, and the effect of other scores.

    Reads the hub with your own kubeconfig. It implements the rules of OCM's placement controller, or queries the
    controller of DSF_PLACEMENT_DEBUGGER. Exit code 1 if no decision is possible.

    Example: dsf placement best -n apps --what-if cluster2=90
    """
    if what_if and name is None:
        raise typer.BadParameter("requires a Placement", param_hint="--what-if")
    if score is not None and not what_if:
        raise typer.BadParameter("goes with --what-if", param_hint="--score")
    import dsf.log
    from dsf.cli.session import add_kubeconfig, limit_log_level
    from dsf.http import trust
    from dsf.kube.session import Session
    from dsf.placements.reader import PlacementReader, make_scheduler_client
    from dsf.placements.settings import PlacementSettings

    settings = limit_log_level(add_kubeconfig(PlacementSettings.load()))
    dsf.log.prepare(settings)
    trust.use_folder(settings.trusted_ca_dir)
    with closing(Session.load(settings.kubeconfig)) as session:
        reader = PlacementReader(session, make_scheduler_client(settings))
        if name is None:
            placement_list = reader.list_placements(namespace or "")
            emit(placement_list, output, lambda: _render_list(placement_list))
            return
        placement_namespace = namespace or _find_namespace(reader.list_placements(), name)
        view = reader.explain(placement_namespace, name)
        if what_if:
            view = reader.explain(placement_namespace, name, _parse_what_if(view, what_if, score))
    emit(view, output, lambda: _render(view, limit or None))
    if view.problem:
        raise typer.Exit(1)


def _find_namespace(placement_list: PlacementList, name: str) -> str:
    from dsf.errors import UnknownNameError

    namespaces = [item.namespace for item in placement_list.placements if item.name == name]
    if len(namespaces) == 1:
        return namespaces[0]
    if namespaces:
        raise typer.BadParameter(
            f"namespaces {', '.join(namespaces)} have one: select one with --namespace", param_hint="--namespace"
        )
    raise UnknownNameError(f"no namespace has a Placement {name!r}; `dsf placement` lists them")


def _parse_what_if(view: PlacementView, texts: list[str], score: str | None) -> list[WhatIf]:
    """Return the hypothetical scores in --what-if. Raises BadParameter, which names the available values."""
    from dsf.placements.explanation import WhatIf

    scores = {
        f"{prioritizer.resource}/{prioritizer.score}": prioritizer
        for prioritizer in view.prioritizers
        if prioritizer.resource or prioritizer.score
    }
    score_names = ", ".join(scores) or "none"
    if score is not None and score not in scores:
        raise typer.BadParameter(
            f"the Placement prefers no score {score!r}; it has: {score_names}", param_hint="--score"
        )
    if score is None and len(scores) != 1:
        raise typer.BadParameter(f"the Placement prefers {len(scores)} scores ({score_names}): select one with --score")
    prioritizer: PrioritizerView = scores[score] if score else next(iter(scores.values()))
    names = {ranked.cluster for ranked in view.ranking}
    hypothetical_scores = []
    for text in texts:
        parts = _WHAT_IF_PATTERN.fullmatch(text)
        if parts is None:
            raise typer.BadParameter(f"{text!r} is not CLUSTER=VALUE, VALUE a whole number or `none`")
        if parts["cluster"] not in names:
            candidate_names = ", ".join(sorted(names)[:10]) or "none"
            raise typer.BadParameter(
                f"cluster {parts['cluster']!r} is not a candidate; candidates are: {candidate_names}"
            )
        value = None if parts["value"] == "none" else int(parts["value"])
        hypothetical_scores.append(
            WhatIf(cluster=parts["cluster"], resource=prioritizer.resource, score=prioritizer.score, value=value)
        )
    return hypothetical_scores


def _render_list(placement_list: PlacementList) -> RenderableType:
    from rich.text import Text

    if not placement_list.placements:
        return Text("There is no Placement.")
    rows = [
        [
            item.namespace,
            item.name,
            str(item.selected),
            "all" if item.number_of_clusters is None else str(item.number_of_clusters),
            item.satisfied or "-",
            ", ".join(item.scores) or "-",
        ]
        for item in placement_list.placements
    ]
    return make_table(
        ("NAMESPACE", "NAME", "HAS", "WANTS", "SATISFIED", "SCORES"), rows, right_aligned_headers=("HAS", "WANTS")
    )


def _render(view: PlacementView, limit: int | None) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    if view.problem:
        parts.append(Text(flatten(f"No decision is possible: {view.problem}"), style="red"))
    parts.append(_make_ranking(view.ranking, view.prioritizers, limit))
    if view.left_out:
        rows = [[excluded.cluster, excluded.stage, excluded.reason] for excluded in view.left_out[:limit]]
        parts += [Text(""), make_table(("LEFT OUT", "BY", "BECAUSE"), rows)]
    if (hypothesis := view.what_if) is not None:
        changes_text = ", ".join(
            f"{what_if.cluster}={'none' if what_if.value is None else what_if.value}" for what_if in hypothesis.asked
        )
        moves = [f"{name} enters" for name in hypothesis.enters] + [f"{name} leaves" for name in hypothesis.leaves]
        parts += [
            Text(""),
            Text(flatten(f"With {changes_text}: {', '.join(moves) or 'nothing changes'}"), style="bold"),
        ]
        parts.append(_make_ranking(hypothesis.ranking, view.prioritizers, limit))
    method = "OCM's own scheduler" if view.source == "ocm" else "OCM's rules, computed here"
    wants = "all that pass" if view.number_of_clusters is None else str(view.number_of_clusters)
    parts += [
        Text(""),
        Text(flatten(f"{view.namespace}/{view.name} wants {wants}; values by {method}. {view.source_note}")),
    ]
    parts += [Text(flatten(f"note: {note}"), style="yellow") for note in view.notes]
    parts += [Text(flatten(condition)) for condition in view.conditions]
    return Group(*parts)


def _make_ranking(rows: list[RankedCluster], prioritizers: list[PrioritizerView], limit: int | None) -> RenderableType:
    names = [f"{prioritizer.weight} x {prioritizer.name}" for prioritizer in prioritizers]
    lines: list[list[str | tuple[str, str]]] = [
        [
            str(row.rank),
            (row.cluster, "green" if row.decided else ""),
            "yes" if row.decided else "-",
            "yes" if row.chosen else "-",
            str(row.total),
            "-" if row.margin is None else f"{row.margin:+d}",
            *(_format_cell(cell) for cell in row.cells),
        ]
        for row in rows[:limit]
    ]
    headers = ("RANK", "CLUSTER", "HAS IT", "NOW CHOSEN", "SUM", "MARGIN", *names)
    return make_table(headers, lines, right_aligned_headers=("RANK", "SUM", "MARGIN", *names))


def _format_cell(cell: CellView) -> str | tuple[str, str]:
    if cell.standing in ("counted", "asked"):
        return f"{cell.points} ({cell.value})" if cell.points != cell.value else str(cell.value)
    return f"0 ({_STANDING_TEXTS[cell.standing]})", "yellow"
