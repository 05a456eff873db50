"""What lives in Redis: connections, the schedule, the registry, runs, books, scores.

`client` connects; `registry` holds scorers and clusters; `schedule` holds entries, overrides and due times; `pairs`
holds what is known of one scorer on one cluster, `skips` which of its ticks beat did not send; `runs` closes runs and
keeps the books balanced; `writes` says which AddOnPlacementScores need a look. Key names are in `dsf.keys`, Lua scripts
in `lua/`.
"""
