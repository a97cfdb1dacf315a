"""Comparison of policies: the same jobs simulated under several policies, loads and seeds."""
