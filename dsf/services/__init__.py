"""`dsf hub`: `process` runs the chosen services in one process. `beat` is one of them; the others are in `dsf.hub`,
`dsf.results` and `dsf.web`, each as `service` or `worker`."""
