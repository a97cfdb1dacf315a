"""Replays of Gavel, Hadar and HadarE, round by round, on clusters of several GPU types."""
