"""State of the fleet, read from Redis, for the command line, the exporter, the page and the optimiser.

verdict      state of one scorer on one cluster
model        sums over pairs and pairs in pages, from the read model; overviews are its answers
views        answers, as JSON API and `-o json` have them
reader       scores, scorers, schedule and past cycles; with pages
schedule     entries in force, and users' changes to them
rescore      ticks sent by hand, and their results
credentials  which credentials agents use
outfolder    what a hub on a folder wrote there
"""
