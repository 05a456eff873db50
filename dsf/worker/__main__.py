"""`python -m dsf.worker WORD ...`: Celery's command line, which ends on SIGTERM as process 1 of a container."""

import sys

from dsf.process.launch import install_signal_handlers

if __name__ == "__main__":
    install_signal_handlers()
    sys.argv[0] = "celery"
    from celery.__main__ import main

    main()
