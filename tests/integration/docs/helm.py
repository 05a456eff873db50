"""`helm` as far as the pages use it, on Helm's own code in helm-python-sdk.

Charts of other repositories are refused. With `render` an upgrade only checks the values and renders, which is quicker,
and enough where another page installs the same chart.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import helm_python
import yaml

from tests.support.jobs import jobs_complete


def parser() -> argparse.ArgumentParser:
    """Return the commands and flags that pages use; any other one is an error."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--namespace", "-n", default="default")
    common.add_argument("--kube-context", default="")
    helm_parser = argparse.ArgumentParser(prog="helm", allow_abbrev=False)
    commands = helm_parser.add_subparsers(dest="command", required=True)
    upgrade = commands.add_parser("upgrade", parents=[common], allow_abbrev=False)
    upgrade.add_argument("release")
    upgrade.add_argument("chart")
    # Ignored here: these CRDs always belong to the release.
    for flag in ("--install", "--create-namespace", "--reset-then-reuse-values", "--take-ownership"):
        upgrade.add_argument(flag, action="store_true")
    upgrade.add_argument("--version")
    upgrade.add_argument("--values", "-f", action="append", default=[], type=Path)
    upgrade.add_argument("--set", action="append", default=[])
    upgrade.add_argument("--set-file", action="append", default=[])
    for name in ("uninstall", "rollback", "history"):
        commands.add_parser(name, parents=[common], allow_abbrev=False).add_argument("release")
    get = commands.add_parser("get", parents=[common], allow_abbrev=False)
    get.add_argument("what", choices=["values"])
    get.add_argument("release")
    get.add_argument("--output", choices=["yaml"])
    repo = commands.add_parser("repo", allow_abbrev=False)
    repo.add_argument("what", choices=["add"])
    repo.add_argument("name")
    repo.add_argument("url")
    return helm_parser


def merged(*values: dict[str, Any]) -> dict[str, Any]:
    """Merge values key by key; later ones win."""
    merged_values: dict[str, Any] = {}
    for mapping in values:
        for key, value in mapping.items():
            old = merged_values.get(key)
            merged_values[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged_values


def _values(arguments: argparse.Namespace) -> dict[str, Any]:
    files = [yaml.safe_load(path.read_text(encoding="utf-8")) or {} for path in arguments.values]
    whole = [expression.partition("=") for expression in arguments.set_file]
    # As --set would have it, which takes no text of several lines.
    texts = [_at(name, Path(path).read_text(encoding="utf-8")) for name, _, path in whole]
    return merged(*files, *(helm_python.parse_set_string(expression) for expression in arguments.set), *texts)


def _at(name: str, value: object) -> dict[str, Any]:
    first, _, remainder = name.partition(".")
    return {first: _at(remainder, value) if remainder else value}


def _upgrade(config: helm_python.Config, arguments: argparse.Namespace, render: bool) -> None:
    values = _values(arguments)
    exists = arguments.release in {release["name"] for release in _releases(config)}
    if exists and arguments.reset_then_reuse_values:
        values = merged(config.get_values(arguments.release) or {}, values)
    if exists and render:
        with helm_python.Chart.load(arguments.chart) as chart:
            chart.validate_schema(values)
            chart.render(values, name=arguments.release, namespace=arguments.namespace)
    elif exists:
        config.upgrade(arguments.chart, arguments.release, values, namespace=arguments.namespace, reset_values=True)
    elif arguments.install:
        config.install(
            arguments.chart,
            arguments.release,
            values,
            namespace=arguments.namespace,
            create_namespace=arguments.create_namespace,
        )
    else:
        raise AssertionError(f"{arguments.release!r} has no deployed releases")


def _releases(config: helm_python.Config) -> list[dict[str, Any]]:
    releases = config.list()
    return list(releases["releases"] if isinstance(releases, dict) else releases)


def helm(helm_arguments: Sequence[str], kubeconfig: Path, *, render: bool = False) -> str:
    """Run Helm with these arguments and return its output. Raises HelmError, and AssertionError for refused values."""
    arguments = parser().parse_args(helm_arguments)
    with helm_python.Config(
        kubeconfig_path=str(kubeconfig),
        kube_context=arguments.kube_context or None,
        namespace=arguments.namespace,
    ) as config:
        match arguments.command:
            case "upgrade":
                _upgrade(config, arguments, render)
            case "uninstall":
                with jobs_complete(kubeconfig, arguments.namespace, arguments.kube_context or None):
                    config.uninstall(arguments.release)
            case "rollback":
                config.rollback(arguments.release)
            case "history":
                return str(config.history(arguments.release))
            case "get":
                return str(yaml.safe_dump(config.get_values(arguments.release) or {}))
            case _:
                raise AssertionError("only the chart of this repository")
    return ""
