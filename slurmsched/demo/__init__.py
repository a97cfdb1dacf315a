"""The embedded demo: a simulated cluster, with rounds and without."""
