"""`python -m dsf.worker WORD ...`: Celery's command line, which ends on SIGTERM as process 1 of a container."""

import sys

from dsf.process.launch import end_when_told

if __name__ == "__main__":
    end_when_told()
    sys.argv[0] = "celery"
    from celery.__main__ import main

    main()
