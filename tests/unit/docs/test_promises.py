"""README.md and docs/comparison.md agree with the project's files."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_RATE = re.compile(r"\b(?:i?rate|increase|i?delta)\([^\[\]\n]*\[([0-9]+)([sm])\]")


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


def test_rates_of_samples_and_pages_have_two_samples_at_the_default_scrape_interval() -> None:
    """Prometheus scrapes once a minute by default, and a rate needs two samples in its window."""
    folders = ("docs", "samples", "demo/manifests", "demo/extras", "deploy", "README.md")
    listing = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    texts = {
        name: (ROOT / name).read_text(encoding="utf-8")
        for name in listing.stdout.splitlines()
        if name.endswith((".md", ".yaml", ".py", ".json", ".tpl"))
    }
    rates = [(name, match) for name, text in texts.items() for match in _RATE.finditer(text)]
    assert len(rates) > 20
    # The page on sources has a window of a minute as an example of what does not work.
    short = [f"{name}: {match[0]}" for name, match in rates if int(match[1]) * {"s": 1, "m": 60}[match[2]] < 120]
    assert [rate for rate in short if rate != "docs/sources.md: rate(x[1m]"] == []
