"""The hub controller turns scorers, clusters and one configuration into ManifestWorks, schedule entries and statuses.

hub                event routing and thread lifecycle
service            the controller as a service, with leader election
controller         the reconciliation loop and its work queue
desiredstate       reads the objects in the backend and keeps the desired state up to date
plan               computes the desired state: accepted clusters x runnable scorers, minus masks
scorerplan         the plan of one scorer in the desired state
admission          decides which names and servers a scorer may use
composites         checks which scores a scorer may combine
clusters           the reconcilers of served and departed clusters
manifestwork       the ManifestWork of a cluster, and which scorers fit into it
secretdelivery     selects and copies the Secrets that are delivered to clusters
credentials        agents' credentials: signing keys, Redis users
registrar          writes registry and schedule to Redis
uninstall          removes all objects that the hub created (`dsf hub --leave`)
statusreconcilers  the reconcilers of scorers and the configuration
conditions         builds conditions and statuses
cycleoutcomes      recent outcomes of a scorer's cycles
health             checks scoring APIs and polls their /config
plannedscores      finds the scores that the desired state contains, for the score writer
acts               executes acts that annotations on a DynamicScorer request
notifications      receives notifications from other processes
rediswatch         watches Redis: version, owner, eviction, persistence, clocks
lostpod            removes the pod of a Redis without a volume when its node is lost

`dsf.backends` stores the objects.
"""
