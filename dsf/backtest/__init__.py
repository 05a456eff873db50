"""Backtests: what a scorer would have said in the past, and what that would have moved. Nothing is published.

scorers     which scorer: a delivered summary, or a manifest that is registered nowhere
recording   one moment of a backtest, the question that it answers, and the file of both
run         the agent's stages at each moment of the past, at a bounded rate
summary     per item: lowest, median and highest value, changes, moments without a value
picture     the same as lines of blocks in a terminal, and as a file
comparison  two scorers: differences, order of clusters, and who can say what Placements would have chosen
kept        what came of runs, in Redis for the page
"""
