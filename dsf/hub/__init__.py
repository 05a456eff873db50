"""The hub controller: scorers, clusters and one configuration in; ManifestWorks, schedule entries and statuses out.

hub             event routing and thread lifecycle
service         the controller as a service, with leader election
controller      the reconciliation loop
workqueue       a queue of keys for reconcilers
desiredstate    reads the backend's objects and keeps the desired state up to date
summaries       computes the desired state: accepted clusters x runnable scorers, minus masks
scorerplan      one scorer's part of the desired state
names           decides which scorer gets a name
capacity        decides which scorers fit into a cluster's ManifestWork
scoreroom       bytes of Redis that the scores of each namespace may take
obstacle        the reason why something cannot be done
clusters        the reconciler of a cluster
distribute      the ManifestWork of a cluster
secretdelivery  Secrets that are delivered to clusters
credentials     agents' credentials: signing keys, Redis users
registrar       writes registry and schedule to Redis
departures      absent clusters, and how long their data is kept
leaving         removes all that the hub made (`dsf hub --leave`)
statuses        the reconcilers of scorers and the configuration
conditions      conditions and statuses
cycles          recent outcomes of a scorer's cycles
statuspace      how often statuses are written
discretion      what a scorer's author may see of servers' answers
health          checks scoring APIs and polls their /config
scores          which scores the desired state wants, for the score writer
notifications   receives notifications of other processes
rediswatch      watches Redis: version, owner, eviction, persistence, clocks
outage          logs an outage once

`dsf.backends` is the store of the hub's objects.
"""
