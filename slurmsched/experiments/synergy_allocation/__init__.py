"""Synergy's mechanisms as published (Mohan et al., OSDI 2022, section 4): every round places all jobs on empty servers.

They are what the paper measured, and the baseline for the policies in `slurmsched.policies`, which keep leases and pay
for restarts.
"""
