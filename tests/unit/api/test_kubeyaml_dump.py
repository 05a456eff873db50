"""Dumped YAML is read back unchanged by Kubernetes' rules and by those of YAML 1.1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import strategies

from dsf.api import kubeyaml
from dsf.backends.outfolder import read_yaml

_TEXTS = (
    "", " ", "a", "node1", "a b", " a", "a ", "-", "- a", "?", ": a", "a: b", "a:b", "a #b", "a#b", "#", "'",
    '"', "it's", "yes", "No", "on", "null", "~", "true", "y", "1", "0x1f", "0o7", "017", "1_000", "1.5", "1e3",
    "1.e+3", ".5", "-.inf", ".nan", "=", "<<", "2026-11-24", "2026-11-24T09:44:45Z", "2026-11-24 09:44:45",
    "12:30:45", "1:2", "!a", "&a", "*a", "[a", "{a", "a]", "a,b", "|", ">", "%a", "@a", "`a", "---", "...",
    "--- a", "a\nb", "a\n", "\n", "\ta", "a\tb", "\x85", "a\u2028b", "\ufeffa", "\x00", "\x7f", "é", "日本", "😀",
    "\\", "a\\nb", "10 score items are up to date", "a961a9d8-24e4-4672-9ccc-cb7dc47789e6",
    "12345678-1234-1234-1234-123456789012", "00000000-0000-0000-0000-0000000000e1", "a" * 99, "a" * 101,
    "a" * 130, "word " * 19 + "end", "word " * 22 + "end", "word " * 40, "é " * 50, "a: " * 33,
)  # fmt: skip


# Texts that kubectl 1.32 reads as numbers or booleans without quotes, as PyYAML writes them.
_OTHERS_TO_KUBECTL = (
    "1e3", "1E3", "0o7", "-0o7", "0O7", "0o_7", "1e-3", "1e+3", "+1e3", ".1e3", "1.e3", "1_e3", "12e03", "08", "+08",
    "0_8", "08_1", "+.5", "0B1", "0X1", "y", "Y", "n", "N",
)  # fmt: skip


@pytest.mark.parametrize("text", _TEXTS)
def test_dumped_text_is_read_back_unchanged(text: str) -> None:
    for data in ({"key": text}, {text: [1, {text: text}]}, {"a": {"b": [text, {"c": text}]}}):
        yaml_text = kubeyaml.dump(data)
        assert kubeyaml.load(yaml_text) == yaml.safe_load(yaml_text) == data


@pytest.mark.parametrize("text", _OTHERS_TO_KUBECTL)
def test_dumped_text_is_a_string_for_kubectl(text: str, tmp_path: Path) -> None:
    data = {"name": text, "labels": {text: [text, 1.5, 10**400, 1e300, True]}}
    for yaml_text in (kubeyaml.dump(data), kubeyaml.dump({"key": data | {"long": "word " * 40}})):
        assert yaml_text.count(f"'{text}'") == 3
    (tmp_path / "file.yaml").write_text(kubeyaml.dump(data))
    assert read_yaml(tmp_path / "file.yaml") == data


# Characters of names and texts, with those that are special in YAML.
_PARTS = strategies.sampled_from([*_TEXTS[:75], *_OTHERS_TO_KUBECTL, *"01-+_.:eExoyn #\"'\\\t"])
_ANY_TEXT = strategies.lists(_PARTS, max_size=8).map("".join) | strategies.text(
    strategies.characters(exclude_categories=["Cs"]), max_size=130
)
_ANY_DATA = strategies.recursive(
    _ANY_TEXT | strategies.none() | strategies.booleans() | strategies.integers(-(10**18), 10**18),
    lambda inner: strategies.lists(inner, max_size=3) | strategies.dictionaries(_ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)


@hypothesis.given(strategies.dictionaries(_ANY_TEXT, _ANY_DATA, min_size=1, max_size=3))
def test_dumped_data_is_read_back_unchanged(data: dict[str, Any]) -> None:
    text = kubeyaml.dump(data)
    assert kubeyaml.load(text) == yaml.safe_load(text) == data
