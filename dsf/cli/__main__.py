"""`python -m dsf.cli`."""

from dsf.cli.script import run

run()
