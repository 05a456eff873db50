"""Packages with source plug-ins as installers leave them: modules and their metadata in a folder."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Mapping
from pathlib import Path

from dsf.sources import registry

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "csv-source"


def install(folder: Path, name: str, entries: Mapping[str, str], module: str | None = None) -> None:
    """Install a distribution `name` 1.0 with these entry points and, unless it is None, the text of module `name`."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{key} = {value}" for key, value in entries.items()]
    (metadata / "entry_points.txt").write_text("\n".join([f"[{registry.GROUP}]", *lines, ""]))
    if module is not None:
        (folder / f"{name}.py").write_text(module)


def install_sample(folder: Path) -> None:
    """Install the package in samples/csv-source, as its pyproject.toml describes it."""
    project = tomllib.loads((SAMPLE / "pyproject.toml").read_text())["project"]
    module = (SAMPLE / "dsf_csv_source.py").read_text()
    install(folder, project["name"].replace("-", "_"), project["entry-points"][registry.GROUP], module)


def forget() -> None:
    """Clear all caches of plug-ins in this process."""
    importlib.invalidate_caches()
    registry.find_source.cache_clear()
    registry.find_plugins.cache_clear()
    registry._load_cached.cache_clear()
