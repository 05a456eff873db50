"""Fixtures of the tests in this folder: one API server and one solver for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dsf.optimizer.solver import SolverProcess
from tests.support.controlplane import ControlPlane
from tests.support.policycrds import install_policy_crds

from .bed import OptimizerHarness


@pytest.fixture(scope="session")
def policy_plane(control_plane: ControlPlane) -> ControlPlane:
    """The API server with the kinds that plans need."""
    install_policy_crds(control_plane.session())
    return control_plane


@pytest.fixture(scope="session")
def solver() -> Iterator[SolverProcess]:
    """A process that solves."""
    process = SolverProcess()
    yield process
    process.close()


@pytest.fixture
def bed(policy_plane: ControlPlane, solver: SolverProcess) -> Iterator[OptimizerHarness]:
    """A namespace with all objects for a plan, and without a plan."""
    new_bed = OptimizerHarness(policy_plane, solver)
    yield new_bed
    new_bed.close()
