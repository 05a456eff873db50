"""State of the fleet, read from Redis, for the command line, the metrics, the page and the optimiser.

snapshot     the rows of all pairs in memory, kept up to date by their changes
verdict      state of one scorer on one cluster, by its row and the clock
groups       rows grouped by state, and scorers and clusters in numbers
selection    filters and cursors of lists
path         where the path from a due pair to a written score is interrupted
rows         a pair as a table row, and in detail
model        answers questions about the fleet, in pages
views        the answers, as the JSON API and `-o json` have them
overviews    the answers that sum up
api          the JSON API, `/api/v1`
client       gets the same answers from the JSON API, without Redis
actions      users' actions
changes      list of the actions
rescore      sends ticks by hand and waits for their results
credentials  which credentials agents use
outfolder    reads what a hub on a folder wrote there
"""
