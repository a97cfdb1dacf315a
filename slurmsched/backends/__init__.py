"""Backends: read a cluster and carry out operations on it."""
