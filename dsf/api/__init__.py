"""Data models of the framework's interfaces to users, scoring APIs, dashboards and OCM. No input or output here.

types                  fixed names and enums
meta                   Kubernetes metadata, times and conditions, and the base of all models
scorer                 `DynamicScorer`, a registered scoring API
policies               rules for readers while cycles fail, give no results, or change little
scorerule              how results become a score
aggregate              `spec.aggregate`: combines results before they become items
hold                   `spec.execution.hold`: holds small changes of a score back
sourcetype             source types: built-in ones, and those of plug-ins
objectsource           the source type `Object`
authentication         authentication to a server, and verification of the server
clouds                 workload identities: cloud tokens for the agents' ServiceAccount
scoringauthentication  `ScoringAuthentication`, which many scorers share
scoringconfig          `DynamicScoringConfig`, masks of scores by cluster
cluster                the used part of OCM's `ManagedCluster`
clusterset             which ManagedClusterSets a cluster is in
selector               label selectors
manifest               parses YAML text of those kinds, with the line of every mistake
kubeyaml               YAML by Kubernetes' rules, with limits
problems               texts about invalid input
plain                  checks of single values in specs
reading                lenient parsing of stored manifests
crd                    the CRDs, generated from the models
urls                   validation and joining of URLs
tokenhosts             lists of servers to which a token may be sent
templates              `${cluster}`, `${label:KEY}` and `${claim:KEY}`
promql                 splits a text into PromQL queries
quantity               Kubernetes quantities, such as `100m`
pauses                 the end of a pause
remoteconfig           the answer of a scoring API's `/config`
resolve                merges a scorer with its `/config` for one cluster
resolvereason          reasons why a scorer cannot run
sourcefields           the part of `resolve` for sources
servers                the part of `resolve` for URLs and authentication
variants               `resolve` for all clusters
summary                `ScorerSummary`, the agent's configuration of a scorer
scoring                the answer of a scoring API, and labels of its results
naming                 rules for names of objects
score                  scores as OCM's `AddOnPlacementScore`: items, values, validity
nameclaims             decides between scorers with the same score name
allowednames           score names that other namespaces may use
"""
