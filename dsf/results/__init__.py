"""The results worker: receives agents' signed results, keeps the books, and writes AddOnPlacementScores."""
