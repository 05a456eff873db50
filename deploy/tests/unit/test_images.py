"""Build arguments of images: extras exist, and their dependencies are installed."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from tests.support.child import run_program

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
#: Packages that are in no agent, whatever it is built with.
LEFT_OUT = set(re.findall(r"--no-install-package ([a-z0-9-]+)", DOCKERFILE.partition("RUN case")[0]))
PAGES = sorted((ROOT / "docs").glob("*.md"))


@functools.cache
def read_locked_packages() -> dict[str, dict[str, Any]]:
    """Return the packages of uv.lock by name."""
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    return {package["name"]: package for package in packages}


def list_needed_packages(extra: str) -> set[str]:
    """Return the packages of an extra of the framework, and their dependencies."""
    packages: set[str] = set()

    def follow(dependencies: list[dict[str, Any]]) -> None:
        for dependency in dependencies:
            package = read_locked_packages()[dependency["name"]]
            if not dependency["name"].startswith("dynamic-scoring-") and dependency["name"] not in packages:
                packages.add(dependency["name"])
                follow(package.get("dependencies", []))
            for name in dependency.get("extra", ()):
                follow(package.get("optional-dependencies", {}).get(name, []))

    follow(read_locked_packages()["dynamic-scoring-framework"]["optional-dependencies"][extra])
    return packages


def list_omitted_packages(extras: str) -> set[str]:
    """Return packages that the agent's build omits with these extras, by running its shell code."""
    script = re.search(r"^RUN (case .*? esac) ", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert script is not None
    process = run_program(["sh", "-c", script[1].replace("\\\n", " ")], env={"AGENT_EXTRAS": extras}, check=True)
    return set(process.stdout.split()) - {"--no-install-package"}


def build_arguments() -> Iterator[tuple[str, str]]:
    for path in (ROOT / "Dockerfile", *PAGES):
        for extras in re.findall(r"(?:AGENT_)?EXTRAS=[\"'](--extra [^\"']*)[\"']", path.read_text()):
            yield path.name, extras


@pytest.mark.parametrize(("page", "extras"), sorted(set(build_arguments())))
def test_each_extra_that_a_page_names_is_there(page: str, extras: str) -> None:
    assert set(extras.replace("--extra", "").split()) <= set(EXTRAS), page


@pytest.mark.parametrize("extra", ["aws", "azure", "gcp", "otel", "sources", "traces"])
def test_agent_image_with_an_extra_has_its_dependencies(extra: str) -> None:
    assert "fastapi" in LEFT_OUT
    assert list_needed_packages(extra) & (LEFT_OUT | list_omitted_packages(f"--extra otel --extra {extra}")) == set()


def test_default_agent_image_has_no_cryptography() -> None:
    assert "cryptography" in list_omitted_packages("--extra otel")


def _base_images() -> Iterator[tuple[Path, str]]:
    """Yield Dockerfile and image of each line FROM that names neither a stage of the file nor an argument."""
    for path in (ROOT / "Dockerfile", *sorted(ROOT.glob("samples/*/Dockerfile"))):
        stages: set[str] = set()
        for image, stage in re.findall(r"^FROM (\S+)(?: AS (\S+))?$", path.read_text(), re.MULTILINE):
            if image not in stages and not image.startswith("$"):
                yield path, image
            stages.add(stage)


def test_base_images_have_tag_and_digest() -> None:
    images = dict(_base_images())
    assert len(images) > 5
    pinned = re.compile(r"[\w./-]+:\d[\w.-]*@sha256:[0-9a-f]{64}")
    assert {path: image for path, image in _base_images() if not pinned.fullmatch(image)} == {}


def test_images_have_one_maintained_python() -> None:
    (image,) = {image for _, image in _base_images() if image.startswith("python:")}
    version = re.match(r"python:(\d+)\.(\d+)\.\d+-slim-trixie@", image)
    assert version is not None, image
    assert (int(version[1]), int(version[2])) >= (3, 13)
    paths = re.findall(r"/lib/python([\d.]+)/", (ROOT / "samples" / "csv-source" / "Dockerfile").read_text())
    assert set(paths) == {f"{version[1]}.{version[2]}"}


def test_dependabot_renews_every_base_image() -> None:
    updates = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())["updates"]
    (docker,) = [update for update in updates if update["package-ecosystem"] == "docker"]
    for path, _ in _base_images():
        folder = f"/{path.parent.relative_to(ROOT)}".replace("/.", "/")
        assert any(PurePosixPath(folder).match(pattern) for pattern in docker["directories"]), folder
