"""Data models of the framework's interfaces to users, scoring APIs, dashboards and OCM. No input or output here.

In reading order:

* `types`: fixed names and enums.
* `meta`: Kubernetes metadata, times and conditions, and the base of all models.
* `scorer`: `DynamicScorer`, a registered scoring API; `policies`: what readers see while it fails, or gives nothing.
* `scoringconfig`: `DynamicScoringConfig`, masks of scores by cluster.
* `cluster`: the used part of OCM's `ManagedCluster`.
* `manifest`: parses YAML text of those kinds, with the line of every mistake; `problems` formats the mistakes.
* `remoteconfig`: the answer of a scoring API's `/config`.
* `resolve`: merges a scorer with its `/config` for one cluster, by way of `sourcefields`, `servers` and `templates`;
  `variants` does it for all clusters.
* `summary`: `ScorerSummary`, the agent's configuration of a scorer.
* `scoring`: the answer of a scoring API, and labels of its results.
* `naming`: rules for names of objects.
* `score`: scores as OCM's `AddOnPlacementScore`: names of items, values, validity.
* `nameclaims`: decides between scorers with the same score name.
"""
