"""The optimiser: plans of workloads from demands, selectable configurations and scores.

Reading order: `model` (the problem), `views` and `plan` (the result), `labels` (manifests to model), `solve` (the
function `solve(problem, limits)`), `values` and `table` (the options as arrays), `search` (finds the best plan),
`program` (the integer program), `bounds` (upper bounds, and items to leave out), `greedy` (a plan without a solver),
`neighbourhood` (large problems), `ties`, `explain`, `plot`. None of these does input or output.

Around them: `params` and `requestbody` (requests), `backend` (objects on the hub), `selector` and
`clusters` (how Placements select clusters), `reading` (request to problem), `solver` (`solve` in a separate process),
`manifests` (a plan as objects), `writer` (atomic writes), `hubredis` (ticks, records of changes and plans for the
page, which are in `plans`), `scores`, and `service`, the interface of all of it, with `errors`. `access` and
`middleware` authorize callers; `app` and `main` serve it over HTTP, `mcp` to assistants. `commands` is the command
line, `pages` the page's plans, with `templates`.

It needs the extra `optimizer`, and for pictures also `plot`.
"""
