"""The Dynamic Scoring Framework for Open Cluster Management."""
