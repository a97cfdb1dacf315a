"""Steps once every job had its turn: spare resources are handed out, running jobs resized."""
