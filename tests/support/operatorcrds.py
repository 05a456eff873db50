"""The CRDs of other operators whose kinds deploy/ has objects of, from their own Go modules."""

from __future__ import annotations

from typing import Any

import yaml

from dsf.kube.session import Session
from tests.support.controlplane import find
from tests.support.controlplane_crds import create_crds


def install_operator_crds(session: Session) -> set[str]:
    """Create them and wait until they are served; their kinds. Raises ControlPlaneMissingError."""
    manifests: list[dict[str, Any]] = [
        yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
        for path in sorted(find("operators").glob("*.yaml"))
    ]
    create_crds(session, manifests)
    return {manifest["spec"]["names"]["kind"] for manifest in manifests}
