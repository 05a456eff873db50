"""AddOnPlacementScores: written by the elected hub controller alone, from the scores in Redis.

writer    the service that compares and writes
desired   computes the object of a pair
queue     pairs to check, in turns of namespaces
rate      limits the writes of the hub
failures  says when a failed write is tried again
"""
