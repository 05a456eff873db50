"""`dsf scorer check`: checks a scoring API against the framework's contract, item by item.

report   the result, for people and programs
target   asks the scoring API, with the framework's own HTTP
samples  the series that it is asked about: made up from its /config, or recorded ones
case     state of a check of one API
service  points about the service: health, /config, paths, token
scoring  points about scores: query, empty, one, many, gaps, NaN, large, labels, range, determinism, speed
expression  checks a scorer with an expression instead, by its manifest
run      all points in order, with their dependencies
command  the command line

`dsf scorer test` asks it about an author's own series, and compares items:

notation   series as in promtool's tests
testfile   parses a file of cases
inprocess  serves a scorer of the library while its cases run
testrun    runs the cases in order
junit      results for CI systems

The package comes with the library for scoring APIs, and needs the framework, which finds it by an entry point
(`dsf.commands`).
"""
