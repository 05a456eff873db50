"""Backtests: the scores that a scorer would have given in the past, and their effect. A backtest publishes no score.

scorers      finds the scorer: a delivered summary, or a manifest that is registered nowhere
inputs       finds the scorers whose scores a composite combines
recording    the file of a backtest, with its questions (what is requested) and the records of its moments
run          runs the agent's stages at each moment of the past, at a bounded rate
summary      per item: lowest, median and highest value, changes, moments without a value
charts       the summary as blocks in a terminal, and as a file
comparison   compares two scorers: values, order of clusters, and decisions of Placements
runstore     summaries of past runs, in Redis for the page
redisrights  the Redis key of these summaries, and the rights to it
errors       the errors of backtests
commands     the command line
runner       runs the commands for users of the page
actions      the page's actions that start them
drawing      lines over time as coordinates for SVG
pages        the page's tab of backtests, with `templates`
"""
