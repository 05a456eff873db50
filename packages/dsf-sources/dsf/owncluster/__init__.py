"""The source types `Kubernetes` and `Object`, which read values from the agent's own cluster.

    kubernetes   the source type `Kubernetes`: free resources
    capacity     capacity of nodes and pods
    requests     requests of a pod, by the scheduler's rules
    objects      the source type `Object`: chosen fields of any objects
    settings     the settings of both source types
    background   the connection, watches and counts that an agent keeps for both source types
    kubecluster  watches of nodes and pods
    kubelisting  lists of other objects

The source types are plug-ins (entry points of the distribution). An agent imports this package for the first scorer
with one of them.
"""
