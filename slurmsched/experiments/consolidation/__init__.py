"""What becomes of a model that copies on several nodes train, measured by training one: nothing of it is simulated."""
