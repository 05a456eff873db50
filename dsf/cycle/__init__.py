"""A cycle of a scorer: its stages fetch and score, for the agent, `dsf explain` and backtests.

stages      the stages, and their threads
evaluation  the stage score of a scorer with an expression
composite   the last results of a cluster's scorers, and expressions that combine them
series      reads the series of a scoring request
"""
