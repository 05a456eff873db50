"""State of the fleet, read from Redis, for the command line, the metrics, the page and the optimiser.

snapshot     the rows of all pairs in memory, kept up to date by what changed
verdict      state of one scorer on one cluster, by its row and the clock
model        answers about the fleet, with pages: sums over pairs, pairs, scores, schedule, past cycles
groups       rows by state, and scorers and clusters in numbers; selection  which rows an answer has: filters, cursors
views        these answers, as JSON API and `-o json` have them; overviews those that sum up
client       the same answers by way of the JSON API, for Python and a command line without Redis
actions      users' actions; changes the list of them
rescore      ticks sent by hand, and their results
credentials  which credentials agents use
outfolder    what a hub on a folder wrote there
"""
