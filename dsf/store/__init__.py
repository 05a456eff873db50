"""Data in Redis: connections, the schedule, the registry, runs, books, scores.

`client` connects; `registry` holds scorers and clusters; `schedule` holds entries, overrides and due times; `pairs`
holds the state of one scorer on one cluster; `runs` closes runs and keeps the books balanced;
`ticks` builds the message of a tick and sends one by hand; `writes` tracks AddOnPlacementScores to check. Key names are
in `dsf.keys`, Lua scripts in `lua/`.
"""
