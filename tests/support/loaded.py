"""What the commands of tests.support.forked find loaded: imported by the process that they are forked from, only there.

Neither structlog nor rich, of which the first looks whether the second is there: commands load them in their own order.
"""

from dsf import lean

# As a command begins.
lean.start()

from dsf.cli import explaining, main, session, statusreport  # noqa: E402

__all__ = ["explaining", "main", "session", "statusreport"]
