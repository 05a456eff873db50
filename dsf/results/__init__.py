"""The results worker: receives agents' signed results, keeps the books, and stores the scores.

worker   starts the threads, and the Celery worker around them
intake   takes results out of the mailboxes
ingest   checks results and records them
ending   computes what each result changes in the books
hold     splits a score into what is published and what is held back
"""
