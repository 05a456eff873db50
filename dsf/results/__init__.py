"""The results worker: receives agents' signed results, keeps the books, and stores the scores.

`worker` starts its threads. `intake` reads mailboxes, `ingest` checks results, `ending` says what each one changes,
`holding` what is held back of a score.
"""
