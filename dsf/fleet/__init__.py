"""State of the fleet, read from Redis, for the command line, the metrics, the page and the optimiser.

snapshot        the rows of all pairs in memory, kept up to date by their changes
verdict         state of one scorer on one cluster, by its row and the clock
rowgroups       rows grouped by state, and scorers and clusters in numbers
selection       filters and cursors of lists
path            where the path from a due pair to a written score is interrupted
views           the JSON of the API and of `-o json`
pairviews       builds the views of a pair
inputs          the inputs of a composite, and why one is missing
queries         answers questions about the fleet, in pages
api             the JSON API, `/api/v1`
client          gets the same responses from the JSON API, without Redis
actions         users' actions
changes         list of the actions
rescore         sends ticks by hand and waits for their results
credentials     which credentials agents use
objectproblems  unmet conditions of scorers, and mistakes in a folder's manifests
"""
