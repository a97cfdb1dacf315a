"""Which nodes and GPUs jobs get: placements of gangs, and node scores that keep fragmentation low."""
