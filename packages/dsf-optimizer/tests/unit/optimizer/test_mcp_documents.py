"""The example of a client's configuration and the document match the tools."""

from __future__ import annotations

import json
import re
from pathlib import Path

from typer.testing import CliRunner

from dsf.cli.main import app
from dsf.optimizer.access import RIGHTS, GuardedAction
from dsf.optimizer.settings import DEFAULT_PORT, OptimizerSettings
from dsf.settings import ENV_PREFIX

ROOT = Path(__file__).resolve().parents[5]
DOCUMENT = (ROOT / "docs" / "mcp.md").read_text()
ACTIONS = {
    "list_scores": GuardedAction.LIST_SCORES,
    "explain_scorer": GuardedAction.EXPLAIN_SCORER,
    "propose_plan": GuardedAction.PROPOSE,
    "apply_plan": GuardedAction.APPLY,
    "reset": GuardedAction.RESET,
    "list_plans": GuardedAction.LIST_PLANS,
    "rescore": GuardedAction.RESCORE,
}


def test_client_example_names_existing_commands_and_settings() -> None:
    # Here, because all test processes load this module and one runs its tests.
    from dsf.optimizer.mcp import PATH

    configuration = json.loads((ROOT / ".vscode" / "mcp.json").read_text())
    local, remote = configuration["servers"].values()
    assert local["command"].endswith("/.venv/bin/dsf")
    assert CliRunner().invoke(app, [*local["args"], "--help"]).exit_code == 0
    assert all(is_setting(name) for name in local["env"])
    assert remote["url"] == f"http://localhost:{DEFAULT_PORT}{PATH}"
    (token_input,) = configuration["inputs"]
    assert remote["headers"]["Authorization"] == f"Bearer ${{input:{token_input['id']}}}"
    assert token_input["password"] is True


def test_document_lists_every_tool_and_its_rights() -> None:
    from dsf.optimizer.mcp_tools import TOOLS

    tables = re.findall(r"^\| `(\w+)` \|(.*)\|$", DOCUMENT, re.MULTILINE)
    names = [name for name, _ in tables]
    assert names == [*TOOLS, *TOOLS]
    needed = dict(tables[len(TOOLS) :])
    for name, action in ACTIONS.items():
        if name == "apply_plan":
            # The document says that apply_plan needs the rights of propose_plan and more.
            needed[name] += needed["propose_plan"]
        for right in RIGHTS[action]:
            assert f"`{right.resource.plural}`" in needed[name]
            assert right.verb in needed[name]


def test_settings_and_json_in_the_document_are_good() -> None:
    from dsf.optimizer.mcp import PATH

    for block in re.findall(r"^```json\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL):
        (server,) = json.loads(block)["mcpServers"].values()
        assert server.get("args") == ["mcp"] or server["url"].endswith(PATH)
    assert all(is_setting(name) for name in re.findall(rf"\b{ENV_PREFIX}[A-Z_]+\b", DOCUMENT))


def is_setting(name: str) -> bool:
    return name.removeprefix(ENV_PREFIX).lower() in OptimizerSettings.model_fields
