"""Where workloads run best: a plan from demands, selectable configurations and scores.

Read in this order: `model` (what is planned), `views` and `plan` (what a plan says), `labels` (from manifests to the
model), `solve` (the one function `solve(problem, limits)`), `values` and `table` (the options in arrays), `search` (the
way to the best plan), `program` (the integer program), `bounds` (what can be left out of it, and how good a plan can
be), `greedy` (a plan without a solver), `neighbourhood` (large problems), `ties`, `explain`, `plot`. None of these does
input or output.

Around them: `params` (what is asked), `backend` (objects on the hub), `selector` and `clusters` (how Placements select
clusters), `reading` (from a request to a problem), `solver` (`solve` in a process of its own), `manifests` (a plan as
objects), `writer` (all of it or nothing), `scores`, and `service`, which is all that can be asked. `access` and
`middleware` say who may; `app` and `main` serve it over HTTP, `mcp` to assistants.

It needs the extra `optimizer`, and for pictures also `plot`.
"""
