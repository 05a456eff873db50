"""A cycle of a scorer: its stages fetch and score, for the agent, `dsf explain` and backtests.

stages  the stages, and their threads
"""
