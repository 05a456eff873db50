"""`python -m dsf.results`: the results worker without the CLI."""

from dsf.process.launch import launch

if __name__ == "__main__":
    launch("results", "dsf.results.worker:run")
