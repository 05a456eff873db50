"""One cycle of one scorer: fetch and score. The agent keeps what comes of them, `dsf explain` shows it.

cycle   one cycle, and how far it is
atonce  several sources at the same time
stages  fetch and score, with an observer
"""
