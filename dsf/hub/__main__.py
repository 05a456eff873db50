"""`python -m dsf.hub`: `dsf hub` without the command line."""

from dsf.process.launch import launch

if __name__ == "__main__":
    launch("hub", "dsf.services.process:run")
