"""Synergy's evaluation (Mohan et al., OSDI 2022): its recorded trace and its load sweeps."""
