"""One cycle of one scorer: fetch and score, for the agent, `dsf explain` and backtests.

cycle   one cycle and its progress, and the cycles that run
stages  fetch and score, with an observer; several sources are queried in parallel
"""
