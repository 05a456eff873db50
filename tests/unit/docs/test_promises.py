"""README.md and docs/comparison.md keep what newcomers are promised."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def _section(page: str, heading: str) -> str:
    """Return the text below a heading of the second level."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return text.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def test_readme_installs_on_a_cluster_by_helm_without_processes_by_hand() -> None:
    section = _section("README.md", "On a cluster")
    commands = re.findall(r"^\$ (\S+)", section, re.MULTILINE)
    assert commands == ["helm", "helm"]
    assert not re.search(r"`?dsf (hub|agent|beat|results|web)\b", section)


def test_comparison_with_other_operators_explains_every_cell() -> None:
    lines = _section("docs/comparison.md", "Beside KEDA, cert-manager and Kueue").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    header, *body = rows
    assert header[1:] == ["KEDA", "cert-manager", "Kueue", "here"]
    assert len(body) >= 10
    assert [row for row in body if len(row) != len(header)] == []
    assert [row for row in body if any(not re.search(r"\w", cell) for cell in row)] == []
