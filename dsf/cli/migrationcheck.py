"""The check of `dsf migrate`: what of an upstream installation stops or changes here. Pure functions over manifests.

A finding `stops` if scorers, or masks, would not work after the migration, and is a `change` if people have to look at
something all the same.
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
from dsf.api.resolve import ResolvedScorer, resolve, synced_config
from dsf.api.scorer import DynamicScorer
from dsf.api.scoringconfig import ANY, DynamicScoringConfig
from dsf.api.types import CONFIG_NAME, HUB_NAMESPACE, MANAGED_BY_LABEL, USABLE_FOR, ConfigSyncMode, ResolveReason
from dsf.api.urls import TokenHosts, base_url, is_valid_url
from dsf.backends.scorestate import looks_like_upstreams
from dsf.errors import ManifestError, ResolutionError
from dsf.fleet.views import View

Manifest = dict[str, Any]
Severity = Literal["stops", "change", "note"]

#: Names and tags of images as the chart takes them for upstream's (deploy/helm/templates/_helpers.tpl).
_UPSTREAM_IMAGE: Final = re.compile(r"(^|/)dynamic-scoring-(controller|addon)([:@].*)?$")
_UPSTREAM_REGISTRY: Final = "quay.io/open-cluster-management/"
_OUR_TAG: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+([-.][0-9A-Za-z.-]+)?")
#: Reasons that only a `/config` that was not read can remove.
_MISSING: Final = frozenset(reason for reason in ResolveReason if reason.startswith("Missing"))


class Finding(View):
    """An obstacle, or something that people have to know."""

    severity: Severity
    #: `<kind> <namespace>/<name>`, or a path in the chart's values.
    object: str
    message: str
    remedy: str


class MigrationReport(View):
    """Data of `dsf migrate --check`."""

    #: Whether anything would stop.
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

    def add(self, document: Any, where: str) -> None:
        """Add a manifest, the items of a List, or the chart's values; other kinds are skipped.

        Raises ManifestError for what is neither.
        """
        if not isinstance(document, dict):
            raise ManifestError(f"{where}: is not a mapping of fields")
        kind = document.get("kind")
        if kind is None and document.keys() & {"hubSetting", "spokeSetting", "redis"}:
            self.values = document
        elif not isinstance(kind, str):
            raise ManifestError(f"{where}: is neither a manifest with a kind nor the values of the chart")
        elif kind.endswith("List"):
            for item in document.get("items") or ():
                self.add({"kind": kind.removesuffix("List"), **item} if isinstance(item, dict) else item, where)
        else:
            kinds = {
                "DynamicScorer": self.scorers,
                "DynamicScoringConfig": self.configs,
                "AddOnPlacementScore": self.scores,
            }
            if kind in kinds:
                if not isinstance(document.get("metadata"), dict) or not document["metadata"].get("name"):
                    raise ManifestError(f"{where}: a {kind} without metadata.name")
                kinds[kind].append(document)

    def value(self, *path: str) -> Any:
        """Return a value of the chart; None if it is not set."""
        value: Any = self.values
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value


@dataclass(frozen=True)
class _Scorer:
    """A scorer that could be read."""

    key: str
    scorer: DynamicScorer
    #: The resolution, None if the scorer would not run, or if only its `/config` says how.
    resolved: ResolvedScorer | None


def check(installation: Installation, namespace: str = "") -> MigrationReport:
    """Return the findings, what stops first.

    `namespace` is the hub's; by default that of the values, else upstream's.
    """
    home = namespace or installation.value("hubSetting", "namespace") or HUB_NAMESPACE
    accepted = {home, *_texts(installation.value("hubSetting", "scorerNamespaces"))}
    findings: list[Finding] = []
    scorers: list[_Scorer] = []
    for manifest in installation.scorers:
        scorers += _check_scorer(manifest, installation, home, accepted, findings)
    findings += _conflicts(scorers)
    configs, unread = _configs(installation.configs, home, findings)
    findings += _misplaced(configs, unread, home, accepted)
    findings += _old_scores(installation.scores, scorers, configs.get(home))
    findings += _check_values(installation)
    order = {"stops": 0, "change": 1, "note": 2}
    findings.sort(key=lambda finding: order[finding.severity])
    stops = any(finding.severity == "stops" for finding in findings)
    return MigrationReport(stops=stops, scorers=len(installation.scorers), findings=findings)


def _check_scorer(
    manifest: Manifest, installation: Installation, home: str, accepted: set[str], findings: list[Finding]
) -> Iterator[_Scorer]:
    """Add the findings about one scorer; yields it if it could be read."""
    metadata = manifest["metadata"]
    key = f"{metadata.get('namespace') or home}/{metadata['name']}"
    name = f"DynamicScorer {key}"

    def add_finding(severity: Severity, message: str, remedy: str) -> None:
        findings.append(Finding(severity=severity, object=name, message=message, remedy=remedy))

    try:
        scorer = read_known_fields(manifest, DynamicScorer)
    except ValidationError as error:
        text = "; ".join(str(mistake) for mistake in explain(error, DynamicScorer, manifest))
        add_finding("stops", f"is refused by the API server: {text}", "correct the manifest")
        return
    namespace = key.partition("/")[0]
    if namespace not in accepted:
        add_finding(
            "stops",
            f"is in namespace {namespace}, which does not count",
            f"list it in hubSetting.scorerNamespaces, or create the scorer in {home}",
        )
    if metadata.get("deletionTimestamp"):
        add_finding("stops", "is being deleted, and finalizers keep it", "remove them, and apply the scorer again")
    synced = synced_config(scorer)
    if problem := find_user_problem(synced):
        add_finding("stops", f"its /config is refused: {problem}", "change the /config")
        return
    is_unknown = scorer.spec.config_sync_mode is ConfigSyncMode.Full and scorer.status.last_synced_config is None
    resolved: ResolvedScorer | None = None
    try:
        resolved = resolve(scorer, _token_hosts(installation))
    except ResolutionError as error:
        if is_unknown and error.reason in _MISSING:
            add_finding(
                "note",
                f"only its /config says the rest ({error.reason}), and this manifest has no status with it",
                "check the running hub: --kubeconfig",
            )
            _check_tokens(_named_tokens(scorer), installation, add_finding)
        else:
            add_finding(
                "stops", f"runs nowhere: {error.reason}: {error}", "change the manifest, or what the message names"
            )
    if resolved is not None:
        _check_tokens(_tokens(resolved), installation, add_finding)
        if not (scorer.spec.scoring.path or synced.scoring.path or is_unknown):
            add_finding(
                "change",
                "sets scoring.path neither in spec nor in /config: /scoring is requested here, the root by upstream",
                "write spec.scoring.path: / if the scoring API answers there",
            )
    yield _Scorer(key, scorer, resolved)


def _tokens(resolved: ResolvedScorer) -> Iterator[tuple[str, str]]:
    """Name of the Secret with each token in upstream's format, and the URL that it is sent to."""
    summary = resolved.summary
    for source in summary.each_source:
        yield source.source_endpoint_auth_name, source.source_endpoint
    yield summary.scoring_endpoint_auth_name, summary.scoring_endpoint


def _named_tokens(scorer: DynamicScorer) -> Iterator[tuple[str, str]]:
    """The same of a scorer whose `/config` is not known: to the servers that the spec names."""
    spec = scorer.spec
    for stage in (*(spec.sources or (spec.source,)), spec.scoring):
        if stage.auth is not None and (secret := stage.auth.token_secret_ref) is not None:
            yield secret.name or "", stage.host or spec.config_url


def _check_tokens(tokens: Iterable[tuple[str, str]], installation: Installation, add_finding: Any) -> None:
    """Add a finding for each token whose Secret is not released for the server that it goes to."""
    released = _released(installation)
    for secret, endpoint in dict.fromkeys(tokens):
        if not secret or not is_valid_url(endpoint):
            continue
        server = base_url(endpoint)
        hosts = released.get(secret)
        if hosts is not None and hosts.allow(endpoint):
            continue
        where = "lists it without this server" if hosts is not None else "does not list it"
        add_finding(
            "stops",
            f"sends the token of Secret {secret} to {server}; spokeSetting.agent.tokenSecrets {where}, so cycles end "
            "with secret_refused",
            f"add {{name: {secret}, hosts: [{server.partition('://')[2]}]}} there, or annotate the Secret on each "
            f"cluster with {USABLE_FOR}",
        )


def _conflicts(scorers: Sequence[_Scorer]) -> Iterator[Finding]:
    """Scorers of which only one gets a name: of the score, or, in several namespaces, their own."""
    by_score: dict[str, list[_Scorer]] = defaultdict(list)
    by_name: dict[str, list[_Scorer]] = defaultdict(list)
    for each in scorers:
        by_name[each.scorer.metadata.name].append(each)
        if each.resolved is not None:
            by_score[sanitize_resource_name(each.resolved.score_name)].append(each)
    for what, groups in (("score name", by_score), ("scorer name", by_name)):
        for name, group in groups.items():
            first, *later_scorers = sorted(
                group, key=lambda each: (str(each.scorer.metadata.creation_timestamp), each.key)
            )
            for other in later_scorers:
                yield Finding(
                    severity="stops",
                    object=f"DynamicScorer {other.key}",
                    message=f"has the {what} {name!r} of {first.key}, which is older; one of them gets it",
                    remedy=f"give it another {what}",
                )


def _configs(
    manifests: Iterable[Manifest], home: str, findings: list[Finding]
) -> tuple[dict[str, DynamicScoringConfig], set[str]]:
    """Return the configurations that upstream obeys, by namespace, and the namespaces of those that cannot be read."""
    configs: dict[str, DynamicScoringConfig] = {}
    unread: set[str] = set()
    for manifest in manifests:
        metadata = manifest["metadata"]
        namespace = metadata.get("namespace") or home
        if metadata["name"] != CONFIG_NAME:
            continue
        name = f"DynamicScoringConfig {namespace}/{metadata['name']}"
        if metadata.get("deletionTimestamp"):
            message = "is being deleted; this hub removes upstream's finalizer, and then it is gone with its masks"
            findings.append(Finding(severity="stops", object=name, message=message, remedy="apply it again afterwards"))
        try:
            configs[namespace] = read_known_fields(manifest, DynamicScoringConfig)
        except ValidationError as error:
            unread.add(namespace)
            text = "; ".join(str(mistake) for mistake in explain(error, DynamicScoringConfig, manifest))
            message = f"is refused by the API server, and as stored nothing runs: {text}"
            findings.append(Finding(severity="stops", object=name, message=message, remedy="correct the manifest"))
    return configs, unread


def _misplaced(
    configs: Mapping[str, DynamicScoringConfig], unread: Iterable[str], home: str, accepted: set[str]
) -> Iterator[Finding]:
    for namespace in sorted({*configs, *unread} - {home}):
        masks = len(configs[namespace].spec.all_masks) if namespace in configs else None
        if namespace in accepted:
            message = f"counts in namespace {home} only, and no scorer beside it runs while it is there"
        elif masks == 0:
            continue
        else:
            message = f"counts in namespace {home} only, so its masks are lost"
        text = f"add its {masks} masks to the one in {home}" if masks else f"add its masks to the one in {home}"
        yield Finding(
            severity="stops",
            object=f"DynamicScoringConfig {namespace}/{CONFIG_NAME}",
            message=message,
            remedy=f"{text}, and delete it" if masks != 0 else "delete it",
        )


def _old_scores(
    scores: Iterable[Manifest], scorers: Sequence[_Scorer], config: DynamicScoringConfig | None
) -> Iterator[Finding]:
    """AddOnPlacementScores of upstream's agents that nothing will renew or remove."""
    published = {
        sanitize_resource_name(each.resolved.score_name): each.resolved.score_name
        for each in scorers
        if each.resolved is not None and each.scorer.spec.score_destination == "AddOnPlacementScore"
    }
    unknown = any(each.resolved is None for each in scorers)
    masks = config.spec.all_masks if config is not None else []
    for score in scores:
        metadata, status = score["metadata"], score.get("status") or {}
        cluster, name = metadata.get("namespace", ""), metadata["name"]
        # Without managedFields, which kubectl hides, the writer is not known.
        is_foreign = bool(status.get("validUntil")) or ("managedFields" in metadata and not looks_like_upstreams(score))
        if MANAGED_BY_LABEL in (metadata.get("labels") or {}) or (is_foreign and name not in published):
            continue
        if is_foreign:
            yield Finding(
                severity="stops",
                object=f"AddOnPlacementScore {cluster}/{name}",
                message="has the name of a scorer's score, and is another controller's: ScoreNameForeign there",
                remedy="give the scorer another score name, or delete the object",
            )
            continue
        if name in published:
            raw = published[name]
            is_masked = any(mask.cluster_name in (cluster, ANY) and mask.score_name in (raw, ANY) for mask in masks)
            if not is_masked:
                continue
            why = "a mask keeps its scorer from this cluster"
        else:
            why = "no scorer that can run publishes it" if unknown else "no scorer publishes it"
        yield Finding(
            severity="change",
            object=f"AddOnPlacementScore {cluster}/{name}",
            message=f"has no validUntil and stays, so Placements go on using it: {why}",
            remedy=f"kubectl delete addonplacementscore -n {cluster} {name}, unless another controller writes it",
        )


def _check_values(installation: Installation) -> Iterator[Finding]:
    """Images of upstream, which do not contain this project."""
    for path in (("hubSetting", "resourceController", "image"), ("spokeSetting", "agent", "image")):
        image = installation.value(*path)
        if not isinstance(image, dict):
            continue
        name, tag, where = str(image.get("name") or ""), str(image.get("tag") or ""), ".".join(path)
        if _UPSTREAM_IMAGE.search(name) and not name.startswith(_UPSTREAM_REGISTRY):
            yield Finding(
                severity="stops",
                object=where,
                message=f"names {name}, an image of upstream in another registry, which the chart refuses",
                remedy="mirror this project's images, and name them",
            )
        elif name.startswith(_UPSTREAM_REGISTRY) or (tag and not name and not _OUR_TAG.fullmatch(tag)):
            yield Finding(
                severity="note",
                object=where,
                message=f"has upstream's image or tag ({name or tag}), which the chart ignores; it takes its own",
                remedy="remove it",
            )
    if installation.value("hubSetting", "addonController") is not None:
        yield Finding(
            severity="note",
            object="hubSetting.addonController",
            message="has no effect: OCM's add-on manager installs the agents",
            remedy="remove it",
        )


def _released(installation: Installation) -> dict[str, TokenHosts]:
    """Return the servers for which the values release each Secret's token."""
    hosts: dict[str, list[str]] = defaultdict(list)
    for entry in installation.value("spokeSetting", "agent", "tokenSecrets") or ():
        if isinstance(entry, dict) and entry.get("name"):
            hosts[str(entry["name"])] += _texts(entry.get("hosts"))
        elif isinstance(entry, str):
            hosts[entry] += []
    return {name: _hosts(f"tokenSecrets[{name}]", entries) for name, entries in hosts.items()}


def _token_hosts(installation: Installation) -> TokenHosts:
    return _hosts("hubSetting.tokenHosts", _texts(installation.value("hubSetting", "tokenHosts")))


def _hosts(where: str, entries: Iterable[str]) -> TokenHosts:
    try:
        return TokenHosts(entries)
    except ValueError as error:
        raise ManifestError(f"{where}: {error}") from None


def _texts(value: Any) -> list[str]:
    return [str(entry) for entry in value] if isinstance(value, list) else []
