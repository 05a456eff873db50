"""Lists where each command of the pages is run by a test, and which cannot be run here, with the reason.

A command in none of these tables fails `test_commands.py`: add new ones here.
"""

from __future__ import annotations

import enum
import functools
import re

from tests.integration.docs import pages
from tests.integration.docs.pages import Command


class Venue(enum.Enum):
    """Where a command is run."""

    #: On a hub and a managed cluster with real API servers, by `test_cluster_pages.py`, in the order of the page.
    CLUSTER = "cluster"
    #: Beside a running stack, by `test_stack_pages.py`.
    STACK = "stack"
    #: In a shell, by `test_commands.py`.
    HERE = "here"
    #: By the page's own test.
    OWN = "own"
    #: The command is not run, only checked statically.
    NOWHERE = "nowhere"


#: Pages whose commands are run by their own test.
OWN_TESTS = {
    "docs/backtest.md": "packages/dsf-backtest/tests/integration/backtest/test_page.py",
    "docs/tutorial.md": "demo/tests/integration/demo/test_demo.py",
    "docs/optimization.md": "tests/e2e/test_optimization.py",
}

#: Pages whose blocks of Python `test_stack_pages.py` runs as one program, in the order of the page.
PROGRAMS = ("docs/python.md",)

_CONTAINERS = "there is no container engine here; tests/node types those of the quickstart"
_PODS = "there are no pods here; its flags are checked, and tests/node types those of the quickstart"
_NETWORK = "nothing is fetched from other projects by tests"
_LONG = "starts a process that stays; the demo's and the stack's tests run it, its options are checked"
_TARGET = "would run for minutes; the target exists"

#: Pattern of commands that cannot be run here -> reason.
NOWHERE = {
    r"^(kind|docker|podman)\b": _CONTAINERS,
    r"^HUB_IP=\$\(docker ": _CONTAINERS,
    r"^(JOIN=\$\()?clusteradm\b": _CONTAINERS,
    r"^\$\{JOIN/": _CONTAINERS,
    r"^(REGISTRY=\$\()?oc\b": "OpenShift is not here",
    r"^python -m bench\b": "measures for minutes to hours",
    r"^helm repo add ": _NETWORK,
    r"^helm upgrade --install \S+ (?!deploy/helm )\S+/\S+ ": _NETWORK,
    r"kubectl .*apply -f https://": _NETWORK,
    r"^kubectl krew ": "krew is not here; tests/unit/release checks its manifest",
    r"-f charts/dynamic-scoring-framework/crds$": "is in upstream's repository; e2e/test_migration.py applies it",
    r"^kubectl dsf\b": "needs the page of a hub behind an API server; tests/integration/web/test_kubectl.py runs it",
    r"^git clone https://|\bgo build\b": _NETWORK,
    r"^kubectl .*\b(exec|port-forward|wait|logs|rollout status|patch pvc|delete statefulset)\b": _PODS,
    r"LOST-NODE|dynamic-scoring-redis-0 (--force|-o jsonpath)": "no node is lost here; the flags are checked",
    r"^kubectl create token ACCOUNT\b": "ACCOUNT stands for a name; its flags are checked",
    r"\bDSF_API_TOKEN_FILE=token dsf ": "needs a page with tokens; tests/integration/web/test_api.py shows it one",
    r"^curl .*localhost:8428/": "VictoriaMetrics is not here",
    r"^dsf (demo|up|hub|flower|agent)\b": _LONG,
    r"^dsf (optimize|optimizer|mcp)\b": "needs OCM's hub; tests/e2e/test_optimization.py runs it",
    r"^dsf migrate\b": "needs upstream's objects; tests/integration/hub/kube/test_from_upstream.py runs it",
    r"^dsf placement\b": "needs OCM's hub; tests/e2e/test_placement_order.py runs it",
    r"^dsf credentials revoke ": "makes cycles fail; tests/integration/security/running/test_credentials.py runs it",
    r"dynamic-scoring-redis-ca\b|redis\.tls\.ca=": "another CA; deploy/tests/integration/test_install.py types it",
    r"^make (demo|test|test-all|node|bench)\b": _TARGET,
    r"^make docs\b|^python3 -m http\.server ": "tests/unit/docs builds the site and serves it to a browser",
    r"^(\.venv/bin/)?pytest\b": _TARGET,
    r"^(uv tool|pipx) install ": "needs a release; tests/integration/release installs the files of one",
    r"^scripts/release ": "tags; tests/unit/release runs it in a repository of its own",
    r"^(git push|sha256sum|gh|cosign) ": "is about a release that is published",
    r"^deploy/skupper/link\.sh ": "Skupper is not here; integration/deploy/test_skupper_link.py plays its controller",
    r"\bkube-prometheus-grafana\b": "the Secret is that of another project's chart; its flags are checked",
    r"--reset-then-reuse-values --set redis\.persistence\.": "needs pods; tests/node/test_redis.py types it",
    r"-k deploy/kustomize-example$": "installs beside Helm; deploy/tests/integration/test_kustomize.py types it",
    r"\bargocd\b": "Argo CD is not here; deploy/tests/unit/test_gitops_health.py runs its scripts",
    r"\bdeploy/flux/": "Flux is not here; deploy/tests/unit/test_gitops_health.py evaluates it, its flags are checked",
    r"^make controlplane\b": "runs before the tests that need it",
}

_CLUSTER_PROGRAMS = {"kubectl", "helm"}
_STACK_PROGRAMS = {"dsf", "celery", "curl"}
#: Programs that a command may use beside those of the tables above.
TOOLS = {"sed", "base64", "grep", "openssl", "date", "cd", "export", "source", "promtool", "jq"}
#: Programs that need nothing of this project, or only files.
_HERE_FIRST = {"export", "source", "promtool"}
#: Commands of `dsf` that need only files of the repository.
_FILES_ONLY = re.compile(r"dsf scorer test\b")
#: Variables that a page sets once and that its later commands need.
EXPORTS = {"DSF_ROLE": "cli"}


def venue(command: Command) -> Venue:
    """Return where a command is run. Raises LookupError for a program in none of the tables."""
    if command.page in OWN_TESTS:
        return Venue.OWN
    if reason(command):
        return Venue.NOWHERE
    programs = set(command.programs)
    unknown = programs - _CLUSTER_PROGRAMS - _STACK_PROGRAMS - TOOLS
    if unknown or not (programs or "=" in command.text):
        raise LookupError(f"{command}: {sorted(unknown)} is in no table of tests/integration/docs/venues.py")
    if programs & _CLUSTER_PROGRAMS or not programs:
        return Venue.CLUSTER
    if _FILES_ONLY.match(command.text):
        return Venue.HERE
    if programs & _STACK_PROGRAMS:
        return Venue.STACK
    if programs & _HERE_FIRST:
        return Venue.HERE
    raise LookupError(f"{command}: nothing of ours is in it")


@functools.cache
def of(*venues: Venue) -> tuple[Command, ...]:
    """Return the commands of all pages that run at these venues; commands in none of the tables are left out."""
    return tuple(command for command in pages.all_commands() if _known(command) in venues)


def _known(command: Command) -> Venue:
    try:
        return venue(command)
    except LookupError:
        return Venue.NOWHERE


def reason(command: Command) -> str:
    """Why a command cannot be run here, or an empty text."""
    return next((explanation for pattern, explanation in NOWHERE.items() if re.search(pattern, command.text)), "")
