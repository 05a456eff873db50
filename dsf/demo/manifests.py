"""The manifests of the demo: written once, then edited by the user."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from dsf.demo.ports import LOCALHOST
from dsf.errors import ToolError

#: Clusters of the demo, as in `templates/clusters.yaml`.
CLUSTERS = ("worker01", "worker02")
#: File with each scorer's address in the manifests; beside them, as the state folder may change between runs.
_ADDRESSES = ".addresses.json"
#: Its name in the state folder of earlier versions.
_OLD_ADDRESSES = "addresses.json"


def prepare(
    folder: Path, state_dir: Path, ports: Mapping[str, int], more: Mapping[str, str] | None = None
) -> list[str]:
    """Write the manifests into `folder` unless it has some; returns messages for the user.

    `ports` has the port of each scorer's service. In manifests of an earlier run, which the user may have edited, only
    outdated addresses are changed. `more` has additional templates by file name; each is written
    unless its file exists. Raises ToolError when the folder cannot be written.
    """
    addresses = {name: f"{LOCALHOST}:{port}" for name, port in ports.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = [path for pattern in ("*.yaml", "*.yml") for path in sorted(folder.glob(pattern))]
        record = folder / _ADDRESSES
        before = record if record.exists() else state_dir / _OLD_ADDRESSES
        notes = _move(files, addresses, before) if files else _write(folder, addresses)
        for name, template in (more or {}).items():
            if not (folder / name).exists():
                (folder / name).write_text(_filled(template, addresses), encoding="utf-8")
        record.write_text(json.dumps(addresses), encoding="utf-8")
    except OSError as error:
        raise ToolError(f"cannot write manifests into {folder}: {error.strerror}") from None
    return notes


def _write(folder: Path, addresses: Mapping[str, str]) -> list[str]:
    for template in resources.files("dsf.demo").joinpath("templates").iterdir():
        text = _filled(template.read_text(encoding="utf-8"), addresses)
        (folder / template.name).write_text(text, encoding="utf-8")
    return []


def _filled(template: str, addresses: Mapping[str, str]) -> str:
    for name, address in addresses.items():
        template = template.replace(f"@{name.upper().replace('-', '_')}@", address)
    return template


def _move(files: list[Path], addresses: Mapping[str, str], record: Path) -> list[str]:
    try:
        before: dict[str, str] = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    moved = {before[name]: address for name, address in addresses.items() if before.get(name, address) != address}
    if not moved:
        return []
    # In one pass: two services may have swapped ports.
    pattern = re.compile("|".join(re.escape(f"http://{old}/") for old in moved))
    notes: list[str] = []
    for file in files:
        text = file.read_text(encoding="utf-8")
        changed = pattern.sub(lambda match: f"http://{moved[match[0][len('http://') : -1]]}/", text)
        if changed != text:
            file.write_text(changed, encoding="utf-8")
            notes.append(f"{file.name}: a port is in use by another program, so the scorer's address was changed")
    return notes
