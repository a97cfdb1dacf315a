"""Measures profiles on the cluster itself, by short real jobs."""
