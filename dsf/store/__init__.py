"""Data in Redis: connections, the schedule, the registry, runs, books, scores.

client      connects, and runs scripts
server      checks whether a Redis can be this hub's
registry    existing scorers and clusters
entries     entries and overrides of the schedule, and their combined effect
schedule    keeps entries, overrides and due times
ticks       builds the message of a tick, and sends one by hand
runs        ends runs: with a result, or lost
pairs       state of one scorer on one cluster
history     the last cycles of a pair
writes      messages between the score writer and the rest of the hub
agents      versions and credentials of agents
notices     the hub controller's information on scorers and clusters, for display
heartbeats  heartbeats of the stages that work in a loop
clocks      detects wrong clocks
clockguard  repairs data after the time of Redis went backwards

Key names are in `dsf.keys`, Lua scripts in `lua/`.
"""
