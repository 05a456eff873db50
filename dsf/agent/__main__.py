"""`python -m dsf.agent`: the agent without the CLI."""

from dsf.process.launch import launch

if __name__ == "__main__":
    launch("agent", "dsf.agent.main:run")
