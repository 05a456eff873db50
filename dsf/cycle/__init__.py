"""One cycle of one scorer: its stages fetch and score, for the agent, `dsf explain` and backtests."""
