"""Profiles measured on the cluster itself, by short real jobs."""
