"""Which nodes and devices: placements of gangs, and scores that keep fragmentation low (Weng et al., ATC 2023)."""
