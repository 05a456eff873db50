"""Data in Redis: connections, the schedule, the registry, runs, books, scores.

`client` connects; `registry` holds scorers and clusters; `entries` says what an entry of the schedule is, and when it
is due, and `schedule` holds them with overrides and due times; `pairs` holds the state of one scorer on one cluster,
and `history` its past cycles; `runs` closes runs and keeps the books balanced; `ticks` builds the message of a tick and
sends one by hand; `writes` tracks AddOnPlacementScores to check; `agents` holds what agents say of themselves,
`notices` what people are told. Key names are in `dsf.keys`, Lua scripts in `lua/`.
"""
