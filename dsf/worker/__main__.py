"""`python -m dsf.worker WORD ...`: Celery's command line, which as process 1 of a container ends when told."""

import sys

from dsf.process.launch import end_when_told

if __name__ == "__main__":
    end_when_told()
    sys.argv[0] = "celery"
    from celery.__main__ import main

    main()
