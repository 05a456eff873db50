"""Finds the parts of an upstream installation that would stop or change with this project, for `dsf migrate`.

The check consists of pure functions on manifests. A finding has severity `stops` if scorers or masks would not work
after the migration, `change` if users must act although everything works, and `note` otherwise.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import ValidationError

from dsf.api.manifest import read_known_fields
from dsf.api.naming import sanitize_resource_name
from dsf.api.problems import explain
from dsf.api.remoteconfig import find_user_problem
from dsf.api.resolve import ResolvedScorer, get_synced_config, resolve
from dsf.api.scorer import DynamicScorer
from dsf.api.scoringconfig import ANY, DynamicScoringConfig
from dsf.api.types import CONFIG_NAME, HUB_NAMESPACE, MANAGED_BY_LABEL, USABLE_FOR, ConfigSyncMode, ResolveReason
from dsf.api.urls import TokenHosts, get_base_url, is_valid_url
from dsf.backends.scorestate import may_be_from_upstream_agent
from dsf.errors import ManifestError, ResolutionError
from dsf.fleet.views import View

Manifest = dict[str, Any]
Severity = Literal["stops", "change", "note"]

#: Names and tags of upstream images, by the rules of the chart (deploy/helm/templates/_helpers.tpl).
_UPSTREAM_IMAGE_NAME_PATTERN: Final = re.compile(r"(^|/)dynamic-scoring-(controller|addon)([:@].*)?$")
_UPSTREAM_REGISTRY: Final = "quay.io/open-cluster-management/"
_OUR_TAG_PATTERN: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+([-.][0-9A-Za-z.-]+)?")
#: Reasons that name missing fields, which a `/config` may provide.
_MISSING_FIELD_REASONS: Final = frozenset(reason for reason in ResolveReason if reason.startswith("Missing"))


class Finding(View):
    """A problem of the migration, or a fact that users should know."""

    severity: Severity
    #: `<kind> <namespace>/<name>`, or a path in the chart's values.
    object: str
    message: str
    remedy: str


class MigrationReport(View):
    """Data of `dsf migrate --check`."""

    #: True if a finding has severity `stops`.
    stops: bool
    scorers: int
    findings: list[Finding]


@dataclass
class Installation:
    """The manifests of an upstream installation, and the chart's values for this project."""

    scorers: list[Manifest] = field(default_factory=list)
    configs: list[Manifest] = field(default_factory=list)
    scores: list[Manifest] = field(default_factory=list)
    values: Manifest = field(default_factory=dict)

    def add(self, document: Any, origin: str) -> None:
        """Add a manifest, the items of a List, or the chart's values. Skips manifests of other kinds.

        Later values override earlier values, as with several `-f` options of Helm. `origin` names the origin in errors.
        Raises ManifestError for other documents.
        """
        if not isinstance(document, dict):
            raise ManifestError(f"{origin}: is not a mapping of fields")
        kind = document.get("kind")
        if kind is None and document.keys() & {"hubSetting", "spokeSetting", "redis"}:
            self.values = _merge_values(self.values, document)
        elif not isinstance(kind, str):
            raise ManifestError(f"{origin}: is neither a manifest with a kind nor the values of the chart")
        elif kind.endswith("List"):
            for item in document.get("items") or ():
                self.add({"kind": kind.removesuffix("List"), **item} if isinstance(item, dict) else item, origin)
        else:
            kinds = {
                "DynamicScorer": self.scorers,
                "DynamicScoringConfig": self.configs,
                "AddOnPlacementScore": self.scores,
            }
            if kind in kinds:
                if not isinstance(document.get("metadata"), dict) or not document["metadata"].get("name"):
                    raise ManifestError(f"{origin}: a {kind} without metadata.name")
                kinds[kind].append(document)

    def get_value(self, *path: str) -> Any:
        """Return a value of the chart, or None if it is not set."""
        value: Any = self.values
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value


@dataclass(frozen=True)
class _ReadableScorer:
    """A scorer whose manifest is valid."""

    key: str
    scorer: DynamicScorer
    #: Resolved settings. None if the scorer would not run, or if its `/config`, on which they depend, is unknown.
    resolved_scorer: ResolvedScorer | None


def check(installation: Installation, namespace: str = "") -> MigrationReport:
    """Return the findings about an installation, the most severe ones first.

    `namespace` is the hub's namespace; by default the one in the chart's values, else upstream's.
    """
    hub_namespace = namespace or installation.get_value("hubSetting", "namespace") or HUB_NAMESPACE
    scorer_namespaces = {hub_namespace, *_list_texts(installation.get_value("hubSetting", "scorerNamespaces"))}
    findings: list[Finding] = []
    scorers: list[_ReadableScorer] = []
    for manifest in installation.scorers:
        scorers += _check_scorer(manifest, installation, hub_namespace, scorer_namespaces, findings)
    findings += _find_name_conflicts(scorers)
    configs, unreadable_namespaces = _read_configs(installation.configs, hub_namespace, findings)
    findings += _find_misplaced_configs(configs, unreadable_namespaces, hub_namespace, scorer_namespaces)
    findings += _find_abandoned_scores(installation.scores, scorers, configs.get(hub_namespace))
    findings += _find_image_problems(installation)
    order = {"stops": 0, "change": 1, "note": 2}
    findings.sort(key=lambda finding: order[finding.severity])
    stops = any(finding.severity == "stops" for finding in findings)
    return MigrationReport(stops=stops, scorers=len(installation.scorers), findings=findings)


def _check_scorer(
    manifest: Manifest,
    installation: Installation,
    hub_namespace: str,
    scorer_namespaces: set[str],
    findings: list[Finding],
) -> Iterator[_ReadableScorer]:
    """Add the findings about one scorer, and yield the scorer if its manifest is valid."""
    metadata = manifest["metadata"]
    key = f"{metadata.get('namespace') or hub_namespace}/{metadata['name']}"
    name = f"DynamicScorer {key}"

    def add_finding(severity: Severity, message: str, remedy: str) -> None:
        findings.append(Finding(severity=severity, object=name, message=message, remedy=remedy))

    try:
        scorer = read_known_fields(manifest, DynamicScorer)
    except ValidationError as error:
        text = "; ".join(str(problem) for problem in explain(error, DynamicScorer, manifest))
        add_finding("stops", f"is refused by the API server: {text}", "correct the manifest")
        return
    namespace = key.partition("/")[0]
    if namespace not in scorer_namespaces:
        add_finding(
            "stops",
            f"is in namespace {namespace}, whose scorers the hub ignores",
            f"list it in hubSetting.scorerNamespaces, or create the scorer in {hub_namespace}",
        )
    if metadata.get("deletionTimestamp"):
        add_finding("stops", "is being deleted, and finalizers keep it", "remove them, and apply the scorer again")
    synced_config = get_synced_config(scorer)
    if problem := find_user_problem(synced_config):
        add_finding("stops", f"its /config is refused: {problem}", "change the /config")
        return
    is_config_unknown = scorer.spec.config_sync_mode is ConfigSyncMode.Full and scorer.status.last_synced_config is None
    resolved_scorer: ResolvedScorer | None = None
    try:
        resolved_scorer = resolve(scorer, _read_token_hosts(installation))
    except ResolutionError as error:
        if is_config_unknown and error.reason in _MISSING_FIELD_REASONS:
            add_finding(
                "note",
                f"only its /config says the rest ({error.reason}), and this manifest has no status with it",
                "check the running hub: --kubeconfig",
            )
            _check_tokens(_list_declared_tokens(scorer), installation, add_finding)
        else:
            add_finding(
                "stops", f"runs nowhere: {error.reason}: {error}", "change the manifest, or what the message names"
            )
    if resolved_scorer is not None:
        _check_tokens(_list_resolved_tokens(resolved_scorer), installation, add_finding)
        if not (scorer.spec.scoring.path or synced_config.scoring.path or is_config_unknown):
            add_finding(
                "change",
                "sets scoring.path neither in spec nor in /config: /scoring is requested here, the root by upstream",
                "write spec.scoring.path: / if the scoring API answers there",
            )
    yield _ReadableScorer(key, scorer, resolved_scorer)


def _list_resolved_tokens(resolved_scorer: ResolvedScorer) -> Iterator[tuple[str, str]]:
    """Yield (name of the Secret, URL that receives the token) for each token in upstream's format."""
    summary = resolved_scorer.summary
    for source in summary.each_source:
        yield source.source_endpoint_auth_name, source.source_endpoint
    yield summary.scoring_endpoint_auth_name, summary.scoring_endpoint


def _list_declared_tokens(scorer: DynamicScorer) -> Iterator[tuple[str, str]]:
    """Yield the same pairs as `_list_resolved_tokens`, from the spec of a scorer whose `/config` is unknown."""
    spec = scorer.spec
    for stage in (*(spec.sources or (spec.source,)), spec.scoring):
        if stage.auth is not None and (secret := stage.auth.token_secret_ref) is not None:
            yield secret.name or "", stage.host or spec.config_url


def _check_tokens(tokens: Iterable[tuple[str, str]], installation: Installation, add_finding: Any) -> None:
    """Add a finding for each token whose Secret the chart's values do not release for the server that receives it."""
    hosts_by_secret = _read_token_secrets(installation)
    for secret, endpoint in dict.fromkeys(tokens):
        if not secret or not is_valid_url(endpoint):
            continue
        server = get_base_url(endpoint)
        hosts = hosts_by_secret.get(secret)
        if hosts is not None and hosts.allow(endpoint):
            continue
        problem = "lists it without this server" if hosts is not None else "does not list it"
        add_finding(
            "stops",
            f"sends the token of Secret {secret} to {server}; spokeSetting.agent.tokenSecrets {problem}, so cycles end "
            "with secret_refused",
            f"add {{name: {secret}, hosts: [{server.partition('://')[2]}]}} there, or annotate the Secret on each "
            f"cluster with {USABLE_FOR}",
        )


def _find_name_conflicts(scorers: Sequence[_ReadableScorer]) -> Iterator[Finding]:
    """Yield a finding for each scorer that shares its name, or the name of its score, with an older scorer."""
    scorers_by_score_name: dict[str, list[_ReadableScorer]] = defaultdict(list)
    scorers_by_name: dict[str, list[_ReadableScorer]] = defaultdict(list)
    for scorer in scorers:
        scorers_by_name[scorer.scorer.metadata.name].append(scorer)
        if scorer.resolved_scorer is not None:
            scorers_by_score_name[sanitize_resource_name(scorer.resolved_scorer.score_name)].append(scorer)
    for kind_of_name, groups in (("score name", scorers_by_score_name), ("scorer name", scorers_by_name)):
        for name, group in groups.items():
            oldest_scorer, *later_scorers = sorted(
                group, key=lambda scorer: (str(scorer.scorer.metadata.creation_timestamp), scorer.key)
            )
            for later_scorer in later_scorers:
                yield Finding(
                    severity="stops",
                    object=f"DynamicScorer {later_scorer.key}",
                    message=(
                        f"has the {kind_of_name} {name!r} of {oldest_scorer.key}, which is older; one of them gets it"
                    ),
                    remedy=f"give it another {kind_of_name}",
                )


def _read_configs(
    manifests: Iterable[Manifest], hub_namespace: str, findings: list[Finding]
) -> tuple[dict[str, DynamicScoringConfig], set[str]]:
    """Return the configurations that upstream reads by namespace, and the namespaces of invalid configurations.

    Adds findings about configurations that are invalid or are being deleted.
    """
    configs: dict[str, DynamicScoringConfig] = {}
    unreadable_namespaces: set[str] = set()
    for manifest in manifests:
        metadata = manifest["metadata"]
        namespace = metadata.get("namespace") or hub_namespace
        if metadata["name"] != CONFIG_NAME:
            continue
        name = f"DynamicScoringConfig {namespace}/{metadata['name']}"
        if metadata.get("deletionTimestamp"):
            message = "is being deleted; this hub removes upstream's finalizer, and then it is gone with its masks"
            findings.append(Finding(severity="stops", object=name, message=message, remedy="apply it again afterwards"))
        try:
            configs[namespace] = read_known_fields(manifest, DynamicScoringConfig)
        except ValidationError as error:
            unreadable_namespaces.add(namespace)
            text = "; ".join(str(problem) for problem in explain(error, DynamicScoringConfig, manifest))
            message = f"is refused by the API server, and as stored nothing runs: {text}"
            findings.append(Finding(severity="stops", object=name, message=message, remedy="correct the manifest"))
    return configs, unreadable_namespaces


def _find_misplaced_configs(
    configs: Mapping[str, DynamicScoringConfig],
    unreadable_namespaces: Iterable[str],
    hub_namespace: str,
    scorer_namespaces: set[str],
) -> Iterator[Finding]:
    """Yield a finding for each configuration outside of the hub's namespace, unless it is empty and has no effect."""
    for namespace in sorted({*configs, *unreadable_namespaces} - {hub_namespace}):
        mask_count = len(configs[namespace].spec.all_masks) if namespace in configs else None
        if namespace in scorer_namespaces:
            message = f"counts in namespace {hub_namespace} only, and no scorer beside it runs while it is there"
        elif mask_count == 0:
            continue
        else:
            message = f"counts in namespace {hub_namespace} only, so its masks are lost"
        text = (
            f"add its {mask_count} masks to the one in {hub_namespace}"
            if mask_count
            else f"add its masks to the one in {hub_namespace}"
        )
        yield Finding(
            severity="stops",
            object=f"DynamicScoringConfig {namespace}/{CONFIG_NAME}",
            message=message,
            remedy=f"{text}, and delete it" if mask_count != 0 else "delete it",
        )


def _find_abandoned_scores(
    scores: Iterable[Manifest], scorers: Sequence[_ReadableScorer], config: DynamicScoringConfig | None
) -> Iterator[Finding]:
    """Yield a finding for each AddOnPlacementScore of upstream's agents that the hub neither renews nor removes."""
    published_names = {
        sanitize_resource_name(scorer.resolved_scorer.score_name): scorer.resolved_scorer.score_name
        for scorer in scorers
        if scorer.resolved_scorer is not None and scorer.scorer.spec.score_destination == "AddOnPlacementScore"
    }
    has_unresolved_scorers = any(scorer.resolved_scorer is None for scorer in scorers)
    masks = config.spec.all_masks if config is not None else []
    for score in scores:
        metadata, status = score["metadata"], score.get("status") or {}
        cluster, name = metadata.get("namespace", ""), metadata["name"]
        # Without managedFields, which kubectl hides by default, the writer is unknown.
        is_foreign = bool(status.get("validUntil")) or (
            "managedFields" in metadata and not may_be_from_upstream_agent(score)
        )
        if MANAGED_BY_LABEL in (metadata.get("labels") or {}) or (is_foreign and name not in published_names):
            continue
        if is_foreign:
            yield Finding(
                severity="stops",
                object=f"AddOnPlacementScore {cluster}/{name}",
                message="has the name of a scorer's score, and is another controller's: ScoreNameForeign there",
                remedy="give the scorer another score name, or delete the object",
            )
            continue
        if name in published_names:
            score_name = published_names[name]
            is_masked = any(
                mask.cluster_name in (cluster, ANY) and mask.score_name in (score_name, ANY) for mask in masks
            )
            if not is_masked:
                continue
            cause = "a mask keeps its scorer from this cluster"
        elif has_unresolved_scorers:
            cause = "no scorer that can run publishes it"
        else:
            cause = "no scorer publishes it"
        yield Finding(
            severity="change",
            object=f"AddOnPlacementScore {cluster}/{name}",
            message=f"has no validUntil and stays, so Placements go on using it: {cause}",
            remedy=f"kubectl delete addonplacementscore -n {cluster} {name}, unless another controller writes it",
        )


def _find_image_problems(installation: Installation) -> Iterator[Finding]:
    """Yield a finding for each of the chart's values that names an image or a controller of upstream."""
    for path in (("hubSetting", "resourceController", "image"), ("spokeSetting", "agent", "image")):
        image = installation.get_value(*path)
        if not isinstance(image, dict):
            continue
        name, tag, value_path = str(image.get("name") or ""), str(image.get("tag") or ""), ".".join(path)
        if _UPSTREAM_IMAGE_NAME_PATTERN.search(name) and not name.startswith(_UPSTREAM_REGISTRY):
            yield Finding(
                severity="stops",
                object=value_path,
                message=f"names {name}, an image of upstream in another registry, which the chart refuses",
                remedy="mirror this project's images, and name them",
            )
        elif name.startswith(_UPSTREAM_REGISTRY) or (tag and not name and not _OUR_TAG_PATTERN.fullmatch(tag)):
            yield Finding(
                severity="note",
                object=value_path,
                message=f"has upstream's image or tag ({name or tag}), which the chart ignores; it takes its own",
                remedy="remove it",
            )
    if installation.get_value("hubSetting", "addonController") is not None:
        yield Finding(
            severity="note",
            object="hubSetting.addonController",
            message="has no effect: OCM's add-on manager installs the agents",
            remedy="remove it",
        )


def _read_token_secrets(installation: Installation) -> dict[str, TokenHosts]:
    """Return the servers for which the chart's values release the token of each Secret. Raises ManifestError."""
    hosts: dict[str, list[str]] = defaultdict(list)
    for entry in installation.get_value("spokeSetting", "agent", "tokenSecrets") or ():
        if isinstance(entry, dict) and entry.get("name"):
            hosts[str(entry["name"])] += _list_texts(entry.get("hosts"))
        elif isinstance(entry, str):
            hosts[entry] += []
    return {name: _parse_hosts(f"tokenSecrets[{name}]", entries) for name, entries in hosts.items()}


def _read_token_hosts(installation: Installation) -> TokenHosts:
    return _parse_hosts("hubSetting.tokenHosts", _list_texts(installation.get_value("hubSetting", "tokenHosts")))


def _parse_hosts(source: str, entries: Iterable[str]) -> TokenHosts:
    try:
        return TokenHosts(entries)
    except ValueError as error:
        raise ManifestError(f"{source}: {error}") from None


def _merge_values(values: Manifest, later_values: Manifest) -> Manifest:
    """Return `values` with those in `later_values`. Merges nested mappings, and replaces other values."""
    merged_values = dict(values)
    for name, value in later_values.items():
        earlier_value = merged_values.get(name)
        if isinstance(earlier_value, dict) and isinstance(value, dict):
            merged_values[name] = _merge_values(earlier_value, value)
        else:
            merged_values[name] = value
    return merged_values


def _list_texts(value: Any) -> list[str]:
    return [str(entry) for entry in value] if isinstance(value, list) else []
