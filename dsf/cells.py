"""Assignment of clusters to cells by one rule, `DSF_CELLS`, that all cells read. Pure functions.

A cell is one of several hubs over the same objects, with its own Redis, beat and results workers. Clusters of a
ManagedClusterSet go to the cell that lists it; all others are divided among the cells that list none, by rendezvous
hashing: an additional cell takes an equal share from each, and all other clusters stay.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

# Label of a ManagedCluster: its ManagedClusterSet.
_SET_LABEL: Final = "cluster.open-cluster-management.io/clusterset"


class Cell(BaseModel):
    """One cell as the rule has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Part of the names of a Lease, a finalizer and a folder.
    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$")]
    cluster_sets: tuple[str, ...] = Field(default=(), alias="clusterSets")


@dataclass(frozen=True)
class Cells:
    """The rule from the view of one cell. Without cells, all clusters are its own."""

    own: str = ""
    all: tuple[Cell, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All cells in order."""
        return tuple(cell.name for cell in self.all)

    @property
    def is_first(self) -> bool:
        """Whether this cell does the work of a single cell: it is the first of the rule, or there are no cells."""
        return not self.own or self.all[0].name == self.own

    def is_other(self, name: str) -> bool:
        """Whether this is the name of another cell in the current rule."""
        return bool(self.own) and name != self.own and name in self.names

    def of(self, cluster: str, labels: Mapping[str, str]) -> str:
        """The cell that serves a cluster; empty without cells."""
        return cell_of(cluster, labels, self.all)


def check(own: str, cells: Sequence[Cell]) -> None:
    """Raise ValueError with a message for users unless the rule assigns each cluster to one cell."""
    names = [cell.name for cell in cells]
    sets = [name for cell in cells for name in cell.cluster_sets]
    if twice := _twice(names):
        raise ValueError(f"DSF_CELLS: there are two cells {twice!r}; each needs a name of its own")
    if twice := _twice(sets):
        raise ValueError(f"DSF_CELLS: ManagedClusterSet {twice!r} is listed twice; one cell serves it")
    if bool(own) != bool(cells):
        raise ValueError("DSF_CELL, DSF_CELLS: one is set without the other; DSF_CELLS lists all cells in each of them")
    if own and own not in names:
        raise ValueError(f"DSF_CELL: {own!r} is not in DSF_CELLS, which has {', '.join(names)}")
    if cells and all(cell.cluster_sets for cell in cells):
        raise ValueError("DSF_CELLS: one cell must be without clusterSets: it serves the clusters of all other sets")


def cell_of(cluster: str, labels: Mapping[str, str], cells: Sequence[Cell]) -> str:
    """The cell that serves a cluster with these labels; empty without cells."""
    in_set = labels.get(_SET_LABEL, "")
    listed = next((cell.name for cell in cells if in_set in cell.cluster_sets), "")
    return listed or _by_hash(cluster, tuple(cell.name for cell in cells if not cell.cluster_sets))


@functools.lru_cache(maxsize=100_000)
def _by_hash(cluster: str, cells: tuple[str, ...]) -> str:
    def weight(cell: str) -> bytes:
        return hashlib.blake2b(f"{cell}/{cluster}".encode(), digest_size=8).digest()

    return max(cells, key=lambda cell: (weight(cell), cell), default="")


def _twice(names: Sequence[str]) -> str:
    return next((name for number, name in enumerate(names) if name in names[:number]), "")
