"""The source types `Kubernetes` and `Object`: values that an agent reads from its own cluster.

    kubernetes   the source type `Kubernetes`: free resources
    capacity     capacity of nodes and pods
    requests     requests of a pod, by the scheduler's rules
    objects      the source type `Object`: chosen fields of any objects
    settings     the settings of both
    background   the connection, watches and counts that an agent keeps for both
    kubecluster  watches of nodes and pods
    kubelisting  lists of other objects

The types are plug-ins, entry points of the distribution; an agent imports the package with the first such scorer.
"""
