"""One cycle of one scorer: fetch and score, for the agent and `dsf explain`.

cycle   one cycle, and how far it is
atonce  several sources at the same time
stages  fetch and score, with an observer
"""
