"""`dsf scorer check`: checks a scoring API against the framework's contract, item by item.

report      the result, for people and programs
target      sends requests to the scoring API by the framework's own HTTP client
samples     the series in these requests: generated from the API's /config, or recorded
case        state of a check of one API
service     items about the service: health, /config, paths, token
scoring     items about scores: query, empty, one, many, gaps, NaN, large, labels, range, determinism, speed
expression  checks a scorer with an expression instead, by its manifest
run         all items in order, with their dependencies
command     the command line

`dsf scorer test` sends an author's own series to a scorer, and compares the items of the score with the expected items:

notation   series as in promtool's tests
testfile   parses a file of cases
inprocess  serves a scorer of the library while its cases run
testrun    runs the cases in order
junit      results for CI systems

The package comes with the library for scoring APIs, and needs the framework, which finds it by an entry point
(`dsf.commands`).
"""
