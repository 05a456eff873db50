"""The results worker: ingests agents' signed results into the books, and stores the scores.

worker   the service, with its threads and its Celery worker
intake   reads results from the mailboxes
ingest   verifies results and records them
ending   converts a result to book entries
hold     applies `spec.execution.hold` to a score
"""
