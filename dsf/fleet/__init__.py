"""State of the fleet, read from Redis, for the command line, the metrics, the page and the optimizer.

snapshot        the rows of all pairs in memory, updated by their changes
verdict         the state of one scorer on one cluster, derived from its row and the clock
rowgroups       groups rows by state, and makes overviews of scorers and clusters
selection       filters and cursors of lists
path            finds interruptions of the path from a due pair to a written score
views           the JSON of the API and of `-o json`
pairviews       builds the views of a pair
inputs          the inputs of a composite, and the reasons why one is missing
queries         queries of the fleet, with pages
api             the JSON API, `/api/v1`
client          client of the JSON API, which needs no access to Redis
actions         executes users' actions
changes         the list of users' actions
rescore         sends requested ticks, and waits for their results
credentials     the key ids that agents use
objectproblems  unmet conditions of scorers, and problems of manifests in a folder
"""
