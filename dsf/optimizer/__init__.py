"""Where workloads run best: a plan from demands, selectable configurations and scores.

Read in this order: `model` (what is planned), `plan` (what a plan says), `labels` (from manifests to the model),
`solve` (the one function `solve(problem, limits)`), `values` and `table` (the options in arrays), `search` (the way to
the best plan), `program` (the integer program), `bounds` (what can be left out of it, and how good a plan can be),
`heuristic` (plans without a solver), `ties`, `exchange`, `explain`, `plot`.

It needs the extra `optimizer`, and for pictures also `plot`.
"""
