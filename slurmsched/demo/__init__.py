"""The demo: the same jobs on a simulated cluster, with and without rounds of synsched."""
