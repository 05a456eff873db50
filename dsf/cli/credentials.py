"""`dsf credentials`: list, rotate and revoke the credentials of agents.

The commands send requests to the controller, which creates and delivers credentials. They print no secrets.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dsf.cli.group import EXIT_USAGE, FleetCommand, fail
from dsf.cli.localuser import AsOption, make_actor
from dsf.cli.output import Cell, Format, OutputOption, Renderable, emit, make_table

if TYPE_CHECKING:
    import redis

    from dsf.fleet.credentials import CredentialList

app = typer.Typer(
    help="List and renew the credentials of agents: signing keys and Redis users.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ClusterOption = Annotated[
    list[str] | None, typer.Option("--cluster", "-c", help="This cluster; may be given several times.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Every cluster.")]
WaitOption = Annotated[
    float,
    typer.Option("--wait", min=0, metavar="SECONDS", help="Wait until the old ones are refused, at most this long."),
]
NoteOption = Annotated[str, typer.Option("--note", help="Reason, shown in `dsf changes`.")]

_STYLES = {"in use": "green", "rotating": "yellow", "asked for": "yellow"}


@app.command("list", cls=FleetCommand)
def list_(
    cluster: Annotated[str | None, typer.Option("--cluster", "-c", help="Only this cluster.")] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show the ids of each cluster's credentials, the last used one, and pending requests.

    Example: dsf credentials list
    """
    from dsf.cli.session import open_session

    with open_session() as command_session:
        _print_credentials(command_session.redis, None if cluster is None else {cluster}, output)


@app.command(cls=FleetCommand)
def rotate(
    cluster: ClusterOption = None,
    all_clusters: AllOption = False,
    wait: WaitOption = 0.0,
    note: NoteOption = "",
    author: AsOption = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Issue new credentials to agents. The old ones stay valid until the agent has used the new ones: no cycle is lost.

    Example: dsf credentials rotate --cluster worker01
    """
    _request_credentials("rotate", _select_clusters(cluster, all_clusters), wait, output, note, author)


@app.command(cls=FleetCommand)
def revoke(
    cluster: ClusterOption = None,
    all_clusters: AllOption = False,
    wait: WaitOption = 0.0,
    note: NoteOption = "",
    author: AsOption = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Refuse compromised credentials of agents immediately. Cycles fail until OCM has delivered new ones.

    Example: dsf credentials revoke --cluster worker01
    """
    _request_credentials("revoke", _select_clusters(cluster, all_clusters), wait, output, note, author)


def _select_clusters(clusters: list[str] | None, all_clusters: bool) -> list[str] | None:
    """Return the selected clusters without duplicates. None stands for all clusters."""
    if all_clusters == bool(clusters):
        fail("give either --cluster (once or several times) or --all", EXIT_USAGE)
    return list(dict.fromkeys(clusters)) if clusters else None


def _request_credentials(
    action: Literal["rotate", "revoke"],
    clusters: list[str] | None,
    wait: float,
    output: Format,
    note: str,
    author: str | None,
) -> None:
    from dsf.cli.session import open_session
    from dsf.fleet.actions import Actions
    from dsf.store.registry import Registry

    with open_session() as command_session:
        names = sorted(Registry(command_session.redis).read_clusters()) if clusters is None else clusters
        requests = Actions(command_session.redis, command_session.settings, make_actor(author)).request_credentials(
            action, names, note=note
        )
        old_key_ids = {cluster: request.key_id for cluster, request in requests.items()}
        pending_clusters = _wait_for_rejection(command_session.redis, old_key_ids, wait) if wait else []
        _print_credentials(command_session.redis, set(names), output)
    if pending_clusters:
        fail(
            f"the old credentials of {', '.join(pending_clusters[:10])} are still valid after {wait:g} s; "
            "is the controller running, and is the cluster connected?"
        )


def _wait_for_rejection(client: redis.Redis, old_key_ids: dict[str, int], seconds: float) -> list[str]:
    """Wait up to `seconds` until the hub rejects the old key ids. Return the clusters whose old key is still valid."""
    from dsf.store.registry import Registry

    deadline = time.monotonic() + seconds
    while True:
        clusters = Registry(client).read_clusters()
        pending_clusters = [
            name for name, key_id in old_key_ids.items() if name in clusters and min(clusters[name].key_ids) <= key_id
        ]
        if not pending_clusters or time.monotonic() > deadline:
            return pending_clusters
        time.sleep(0.5)


def _print_credentials(client: redis.Redis, names: set[str] | None, output: Format) -> None:
    from dsf.fleet.credentials import read_credentials

    credential_list = read_credentials(client, names)
    emit(credential_list, output, lambda: _render(credential_list))


def _render(credential_list: CredentialList) -> Renderable:
    if not credential_list.clusters:
        return "No cluster is accepted. `kubectl get managedclusters` lists all clusters."
    rows: list[list[Cell]] = []
    for view in credential_list.clusters:
        previous_ids = ", ".join(str(number) for number in view.previous_ids)
        used_id = "-" if view.used_id is None else str(view.used_id)
        request_text = f"{view.requested} by {view.requested_by or 'unknown'}" if view.requested else ""
        state = (view.state, _STYLES.get(view.state, ""))
        rows.append([view.cluster, str(view.current_id), previous_ids or "-", used_id, state, request_text])
    return make_table(("CLUSTER", "NUMBER", "ALSO VALID", "LAST USED", "STATE", "ASKED FOR"), rows)
