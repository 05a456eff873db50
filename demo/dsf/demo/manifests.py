"""The manifests of the demo: copied once, then edited by the user.

The source is `demo/manifests` in the repository, which `docker compose up` uses unchanged. There each scoring service
has a host name; in the demo it has a port of this machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from dsf.errors import ToolError
from dsf.up.ports import LOCALHOST

#: Clusters of the demo, as in `clusters.yaml`.
CLUSTERS = ("worker01", "worker02")
#: `manifests`, `extras` and `samples`: in a checkout links to the folders of the repository, in a wheel copies of them.
FOLDER = Path(__file__).resolve().parent / "files"
#: File with each scorer's address in the manifests. It is in their folder, because the state folder may change.
_ADDRESSES = ".addresses.json"


def prepare(folder: Path, ports: Mapping[str, int], extras: Sequence[Path] = ()) -> list[str]:
    """Copy the manifests into `folder` unless it has some; returns messages for the user.

    `ports` has the port of each scorer's service. In manifests of an earlier run, which the user may have edited, only
    outdated addresses are changed. `extras` are additional manifests; each is copied unless its file exists. Raises
    ToolError when the folder cannot be written.
    """
    addresses = {name: f"{LOCALHOST}:{port}" for name, port in ports.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = [path for pattern in ("*.yaml", "*.yml") for path in sorted(folder.glob(pattern))]
        record = folder / _ADDRESSES
        demo_templates = [*(FOLDER / "manifests").glob("*.yaml"), *extras]
        names = {template.name for template in demo_templates}
        # Files of the user are left alone, because they may use the same port for another program.
        notes = _update_addresses([file for file in files if file.name in names], addresses, record)
        in_containers = {name: f"{name}:8000" for name in addresses}
        for template in (*(() if files else (FOLDER / "manifests").glob("*.yaml")), *extras):
            if not (folder / template.name).exists():
                text = _replace_addresses(template.read_text(encoding="utf-8"), in_containers, addresses)
                (folder / template.name).write_text(text, encoding="utf-8")
        record.write_text(json.dumps(addresses), encoding="utf-8")
    except OSError as error:
        raise ToolError(f"cannot write manifests into {folder}: {error.strerror}") from None
    return notes


def _update_addresses(files: list[Path], addresses: Mapping[str, str], record: Path) -> list[str]:
    try:
        before: dict[str, str] = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    notes: list[str] = []
    for file in files:
        text = file.read_text(encoding="utf-8")
        changed = _replace_addresses(text, before, addresses)
        if changed != text:
            file.write_text(changed, encoding="utf-8")
            notes.append(f"{file.name}: its port has changed, so the scorer's address was changed")
    return notes


def _replace_addresses(text: str, before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return the text with each scorer's address as in `after`."""
    moved = {f"http://{before[name]}/": f"http://{address}/" for name, address in after.items() if name in before}
    # Replaced in one pass, because two services may have swapped ports.
    pattern = "|".join(re.escape(old) for old in moved)
    return re.sub(pattern, lambda match: moved[match[0]], text) if moved else text
