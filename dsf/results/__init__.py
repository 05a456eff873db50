"""The results worker: receives agents' signed results, keeps the books, and writes AddOnPlacementScores.

`worker` starts its threads. `intake` reads mailboxes, `ingest` checks results, `ending` says what each one changes,
`holding` what is held back of a score. `writer` writes objects, of which `desired` computes the content.
"""
