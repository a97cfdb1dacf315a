"""HadarE (Sultana et al., 2025, section V): copies of one job run on many nodes at once, so that no node is idle."""
