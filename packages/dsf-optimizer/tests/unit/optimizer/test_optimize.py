"""The input file of `dsf optimize -f`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dsf.errors import ManifestError
from dsf.optimizer.commands.optimize import read_params

from .test_params import BODY

YAML = """\
namespace: default
clusters: [{name: c1, availablePolicies: [{name: p}]}]
targetWorkloads: [{name: w}]
preference: {addOnPlacementScore: s}
"""


@pytest.mark.parametrize(
    "text", [json.dumps(BODY), json.dumps(BODY, indent="\t"), "\ufeff" + json.dumps(BODY), YAML, f"# why\n{YAML}"]
)
def test_json_and_yaml(tmp_path: Path, text: str) -> None:
    file = tmp_path / "params"
    file.write_text(text, encoding="utf-8")
    assert read_params(file).namespace == "default"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"preference": None}, "either preference or preferences is required"),
        ({"clusters": [{"name": "A b"}]}, r"clusters\[0\]\.name: .*; clusters\[0\]\.availablePolicies: Field required"),
    ],
)
def test_errors_name_their_place(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    file = tmp_path / "p.json"
    file.write_text(json.dumps(BODY | fields))
    with pytest.raises(ManifestError, match=f"^{re.escape(str(file))}: {words}$"):
        read_params(file)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{\n\t"namespace": "default",\n]', "as JSON: .*line 3 column 1"),
        (b"namespace: default\nclusters: [", "as YAML: .*line 2"),
        (b"\xff\xfe", "utf-8"),
    ],
)
def test_file_neither_json_nor_yaml_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "params"
    file.write_bytes(content)
    with pytest.raises(ManifestError, match=f"(?s)params is neither JSON nor YAML: .*{words}"):
        read_params(file)


def test_duplicate_key_is_refused(tmp_path: Path) -> None:
    """Otherwise one of the two values, such as that of `dryRun`, would be lost."""
    file = tmp_path / "params.json"
    file.write_text('{"namespace": "default", "dryRun": true, "dryRun": false}')
    with pytest.raises(ManifestError, match="'dryRun' is there twice"):
        read_params(file)
    file.write_text("[" * 100_000)
    with pytest.raises(ManifestError, match="neither JSON nor YAML"):
        read_params(file)
