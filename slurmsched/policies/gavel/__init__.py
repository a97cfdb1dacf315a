"""Gavel: shares of time on GPU types, and the rounds that keep them (Narayanan et al., OSDI 2020)."""
