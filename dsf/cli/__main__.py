"""`python -m dsf.cli`."""

from dsf.cli.main import run

run()
