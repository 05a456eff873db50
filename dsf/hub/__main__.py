"""`python -m dsf.hub`: the hub controller without the CLI."""

from dsf.process.launch import launch

if __name__ == "__main__":
    launch("hub", "dsf.hub.main:run")
