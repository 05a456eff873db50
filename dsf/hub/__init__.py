"""The hub controller: scorers, clusters and one configuration in; ManifestWorks, schedule entries and statuses out.

In reading order:

* `dsf.backends`: what the hub needs of the place where its objects live, and the places.
* `summaries`: the desired state, made from the objects alone; `desiredstate` reads the objects and keeps it.
* `clusters`, `scorers`, `configs`, `scores`: make the world as it should be, one object at a time.
* `distribute`: the ManifestWork of a cluster. `registrar`: registry and schedule in Redis.
* `health`: checks of scoring APIs and the polling of their /config.
* `cycles`, `conditions`: what statuses say; `statuses` writes them.
* `workqueue`, `controller`: keys to work on, and the threads that do. `news`, `outage`: Redis as seen from here.
* `hub`: event routing and thread lifecycle. `main`: the process, which works when it is elected.
"""
