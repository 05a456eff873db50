"""The version of kombu whose internals the transports override."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

#: What the tests of this project passed with.
TRIED = "5.7.0"
ADVICE = (
    "the transports of dsf/redislink, dsf/agent, dsf/results and dsf/flower.py override internals of kombu. Compare "
    "kombu/transport/redis.py and kombu/transport/virtual/base.py of both versions, run these packages' tests and "
    "the fault tests, and only then set the pin in pyproject.toml and TRIED here"
)


def test_the_installed_kombu_was_tried() -> None:
    found = metadata.version("kombu")
    assert found == TRIED, f"kombu {found} was not tried, only {TRIED}: {ADVICE}"


def test_it_is_pinned_exactly() -> None:
    text = (Path(__file__).resolve().parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    assert re.findall(r'"kombu(.*)",', text) == [f"=={TRIED}"], ADVICE
