"""The results worker: takes signed results from the agents, keeps the books, and writes AddOnPlacementScores."""
