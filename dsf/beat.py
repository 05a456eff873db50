"""`python -m dsf.beat`: `celery -A dsf.celery beat` without what Celery loads for other commands, such as Flower."""

from __future__ import annotations

import logging
import os
import sys

from dsf import lean, memory
from dsf.errors import DsfError


def _is_unforeseen(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], DsfError)


def main() -> int:
    """Run beat until it is told to stop (SIGTERM, SIGINT)."""
    lean.start()
    from dsf.settings import ENV_PREFIX, settings

    # The Celery application reads the role where every process does.
    os.environ[ENV_PREFIX + "ROLE"] = "beat"
    try:
        config = settings()
        memory.share_heap()
        from celery import signals

        # The application is made at import, by the role just set.
        from dsf.celery import app

        signals.beat_init.connect(lambda **_: memory.settle(), weak=False)
        # Celery logs what ends beat with its traceback; ours is a sentence, said below.
        logging.getLogger("celery.beat").addFilter(_is_unforeseen)

        app.Beat(loglevel=config.log_level, quiet=True).run()
    except DsfError as error:
        print(f"dsf.beat: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
