"""AddOnPlacementScores: written by the elected hub controller alone, from the scores in Redis.

`writer` is the service. `desired` computes the object of a pair, `rate` limits the writes of the hub, `failures` says
when a failed write is tried again.
"""
