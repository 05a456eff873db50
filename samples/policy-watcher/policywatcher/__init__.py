"""Says in a ClusterClaim whether all policies of this cluster are, and stay, complied with.

`claim` is the rule, without any input or output; `cluster` talks to the API server; `watcher` is the loop;
`options` are the environment variables.
"""
