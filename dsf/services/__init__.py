"""`dsf hub`: the services of the hub in one process.

process  runs the chosen services, from their start to their end
beat     beat as a service

The other services are `dsf.hub.service`, `dsf.results.worker` and `dsf.web.service`.
"""
