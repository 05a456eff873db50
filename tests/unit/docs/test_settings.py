"""docs/settings.md lists the current settings."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from dsf.settings import list_settings_classes
from tests.support.child import run_program

ROOT = Path(__file__).resolve().parents[3]
#: Settings that the chart does not set, because their defaults are right in a pod or few installations need another
#: value: those go into a component's `extraEnv`.
BY_EXTRA_ENV = """
target
redis_cert_file redis_key_file
redis_socket_timeout
redis_polling_interval signing_secret
agent_config agent_secrets_dir agent_host_aliases
agent_rate_limit remote_control max_source_bytes
agent_window_series
beat_lock_timeout

lost_after manifests out_dir kubeconfig
hub_resync departure_grace health_interval
exporter_series_limit optimizer_auth
optimizer_cluster_selector optimizer_time_limit
api_url api_token_file
placement_debugger placement_debugger_token_file

"""


def test_settings_page_equals_the_generated_table() -> None:
    process = run_program([sys.executable, ROOT / "scripts" / "settings-table", "--print"], cwd=ROOT)
    assert process.returncode == 0, process.stderr
    page = ROOT / "docs" / "settings.md"
    assert page.read_text(encoding="utf-8") == process.stdout, "run: .venv/bin/python scripts/settings-table"


def test_every_setting_is_set_by_the_chart_or_meant_for_extra_env() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `DSF_(\w+)` \|.*? \| (yes)? ?\|", page, re.MULTILINE)
    by_hand = {name.lower() for name, by_chart in rows if not by_chart}
    assert len(rows) == len({name for group in list_settings_classes() for name in group.model_fields})
    assert by_hand == set(BY_EXTRA_ENV.split()), "a value in deploy/helm/values.yaml and its template, or a name here"
