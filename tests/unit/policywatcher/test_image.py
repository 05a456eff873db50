"""The image copies existing files and does not run as root."""

from __future__ import annotations

import re

from tests.unit.policywatcher import SAMPLE


def test_image_does_not_run_as_root() -> None:
    lines = (SAMPLE / "Dockerfile").read_text().splitlines()
    values = {line.partition(" ")[0]: line.partition(" ")[2] for line in lines if not line.startswith("COPY")}
    assert re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}", values["FROM"])
    assert values["USER"] == "65532:65532"
    assert values["ENTRYPOINT"] == '["python", "-m", "policywatcher"]'
    for line in lines:
        if line.startswith("COPY"):
            assert (SAMPLE / line.split()[1]).exists()


def test_readme_has_every_setting() -> None:
    source = (SAMPLE / "policywatcher" / "options.py").read_text()
    readme = (SAMPLE / "README.md").read_text()
    names = re.findall(r'"([A-Z_]{5,})"', source)
    assert len(names) == 4
    assert all(f"`{name}`" in readme for name in names)
