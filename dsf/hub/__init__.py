"""The hub controller: scorers, clusters and one configuration in; ManifestWorks, schedule entries and statuses out.

In reading order:

* `dsf.backends`: the interface to the store of the hub's objects, and its implementations.
* `summaries`: computes the desired state from the objects; `desiredstate` reads them, says when, and keeps it.
* `clusters`, `scores`, and of scorers and the configuration `statuses`: reconcilers, one object at a time.
* `departures`: clusters and add-ons that are gone. `distribute`: the ManifestWork of a cluster. `registrar`: registry
  and schedule in Redis.
* `health`: checks of scoring APIs and the polling of their /config.
* `cycles`, `conditions`: content of statuses; `statuspace` says how often they are written.
* `workqueue`, `controller`: keys and worker threads. `notifications`: what results
  workers report, and users' actions. `outage`: of Redis.
* `hub`: event routing and thread lifecycle. `service`: the controller as a service, with leader election.
"""
