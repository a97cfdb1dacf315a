"""The steps after every job had its turn: distribute spare resources, resize running jobs."""
