"""The source types `Kubernetes` and `Object`: what an agent reads of its own cluster.

    kubernetes    free resources: `capacity` of nodes and pods, `requests` of a pod by the scheduler's rules
    objects       chosen fields of any objects
    background    what an agent keeps for both: a connection, watches, and counts
    kubecluster   watches of nodes and pods
    kubelisting   lists of other objects

The types are plug-ins, entry points of the distribution; nothing here is imported before an agent has such a scorer.
"""
