"""The nouns of the framework: what a user, a scoring API, a dashboard or OCM's scheduler sees. No input or output here.

In reading order:

* `types`: the fixed names and the words a field may hold.
* `meta`: Kubernetes metadata, times and conditions, and the base of all models.
* `scorer`: `DynamicScorer`, a registered scoring API.
* `scoringconfig`: `DynamicScoringConfig`, which scores which cluster does not want.
* `cluster`: the part of OCM's `ManagedCluster` that matters here.
* `manifest`: YAML text of those kinds, with the line of every mistake; `problems` words the mistakes.
* `remoteconfig`: what a scoring API says about itself at `/config`.
* `resolve`: scorer and its `/config` made one; `urls`, `promql`, `ratelimit` are its helpers.
* `summary`: `ScorerSummary`, what an agent is told about a scorer.
* `scoring`: what a scoring API answers.
* `naming`, `dimension`, `labels`: how names, item names and label values are made.
* `score`: scores as OCM's `AddOnPlacementScore`.
* `conflicts`: who keeps a score name that two scorers want.
"""
