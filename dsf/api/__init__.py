"""Data models of the framework's interfaces to users, scoring APIs, dashboards and OCM. No I/O.

types                  fixed names and enums: source types, reasons why a scorer cannot run
meta                   Kubernetes metadata, times and conditions, ends of pauses, and the base of all models
fieldtypes             types of single values in specs, with their checks
scorer                 `DynamicScorer`, a registered scoring API
acts                   acts that annotations on a DynamicScorer request, and the responses
durations              durations in texts
scorerule              how results become a score: aggregation, items, failing, empty, hold
expressions            the variables of expressions, and the scores that they combine
objectsource           the source type `Object`
authentication         authentication to a server, and verification of the server
clouds                 workload identities: cloud tokens for the agents' ServiceAccount
scoringauthentication  `ScoringAuthentication`, which many scorers share
scoringconfig          `DynamicScoringConfig`, masks of scores by cluster
cluster                the used part of OCM's `ManagedCluster`, and its ManagedClusterSets
selector               label selectors
manifest               reads manifests: YAML text, with the line of every mistake, and stored objects, leniently
kubeyaml               YAML by Kubernetes' rules, with limits
problems               texts about invalid input
crd                    the CRDs, generated from the models
urls                   validation and joining of URLs, and lists of servers to which a token may be sent
templates              `${cluster}`, `${label:KEY}` and `${claim:KEY}`
promql                 splits a text into PromQL queries
quantity               Kubernetes quantities, such as `100m`
remoteconfig           the response of a scoring API's `/config`
resolve                merges a scorer with its `/config` for each cluster
sourcefields           the part of `resolve` for sources
servers                the part of `resolve` for URLs and authentication
summary                `ScorerSummary`, the agent's configuration of a scorer
scoringresponse        the response of a scoring API, and labels of its results
naming                 names of objects, and score names that a namespace may use
score                  scores as OCM's `AddOnPlacementScore`: items, values, validity
nameclaims             decides between scorers with the same score name
"""
