"""The Celery tasks, and the base class of the agent's; what they do is in `dsf.agent` and `dsf.results`.

cycle   `AgentTask`, the base class of tasks that run in an agent
ingest  the hub's task that ingests results
"""
