"""`dsf hub` runs the services of the hub in one process.

process  runs the selected services, from start to shutdown
beat     runs beat in a thread

The other services are `dsf.hub.service`, `dsf.results.worker` and `dsf.web.service`.
"""
