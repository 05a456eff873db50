"""Writes AddOnPlacementScores from the scores in Redis. Only the elected hub controller runs the writer.

writer    the service that compares and writes
desired   computes the object of a pair
queue     pairs to check, round-robin by namespace
rate      limits the writes of the hub
failures  failed writes and the times of their retries
"""
