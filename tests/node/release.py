"""The last release, from which an upgrade starts: its chart and images, built from its tag.

Before the first release it is the last commit.
"""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from tests.node.lab.command import LabError
from tests.node.lab.folders import ROOT
from tests.node.world import AGENT_IMAGE, HUB_IMAGE, MANAGED, InstalledQuickstart

#: Image -> its target in the Dockerfile, the chart's values of its name and tag, and the clusters that run it.
_IMAGES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    HUB_IMAGE.rpartition(":")[0]: ("hub", "hubSetting.resourceController.image", ("hub",)),
    AGENT_IMAGE.rpartition(":")[0]: ("agent", "spokeSetting.agent.image", MANAGED),
}


@dataclass(frozen=True)
class Release:
    """A checked-out state of the project in a separate folder."""

    #: The tag, such as v0.1.0, or a commit.
    name: str
    folder: Path

    @property
    def image_tag(self) -> str:
        """The tag of its images here, because the images of the checkout may have the same version."""
        return f"released-{self.name}"

    @property
    def hub_image(self) -> str:
        """The image of its processes on the hub."""
        return f"{HUB_IMAGE.rpartition(':')[0]}:{self.image_tag}"

    @property
    def values(self) -> Sequence[str]:
        """Helm's words for its images."""
        # A tag without this name would look like one of upstream's.
        return [
            f"--set-string {value}.name={name},{value}.tag={self.image_tag}" for name, (_, value, _) in _IMAGES.items()
        ]

    def build(self, world: InstalledQuickstart) -> None:
        """Build its images from its own Dockerfile, and load them where their pods run."""
        for name, (target, _, clusters) in _IMAGES.items():
            image = f"{name}:{self.image_tag}"
            world.type(f"docker build --target {target} --tag {image} {self.folder}")
            for cluster in clusters:
                world.type(f"kind load docker-image {image} --name {cluster}")


#: Helm's words for the images of the chart's own version.
OWN_IMAGES = [f"--set-string {value}.tag=" for _, value, _ in _IMAGES.values()]


def last(folder: Path, root: Path = ROOT) -> Release:
    """Return the files of the newest tag `vX.Y.Z` before HEAD or at it, else those of HEAD, in `folder`.

    Raises LabError without a repository.
    """
    tag = _git(root, "describe", "--tags", "--abbrev=0", "--match=v[0-9]*", must=False).decode().strip()
    name = tag or _git(root, "rev-parse", "--short", "HEAD").decode().strip()
    with tarfile.open(fileobj=BytesIO(_git(root, "archive", name))) as archive:
        archive.extractall(folder, filter="data")
    return Release(name, folder)


def _git(root: Path, *arguments: str, must: bool = True) -> bytes:
    # In a container of CI the files belong to another user, which git would not trust.
    command = ["git", "-c", "safe.directory=*", *arguments]
    process = subprocess.run(command, cwd=root, capture_output=True, check=False)
    if must and process.returncode:
        raise LabError(f"git {arguments[0]}: {process.stderr.decode(errors='replace').strip()}")
    return b"" if process.returncode else process.stdout
