"""`python -m dsf.exporter`: the exporter without the command line."""

from dsf.process.launch import launch

if __name__ == "__main__":
    launch("exporter", "dsf.exporter.app:run")
