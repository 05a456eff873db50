"""One cycle of one scorer: fetch and score, for the agent and `dsf explain`.

cycle   one cycle and its progress
atonce  parallel queries of several sources
stages  fetch and score, with an observer
"""
