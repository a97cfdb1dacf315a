"""Between observing and applying, all of it pure: `round.run_round` is the whole, each module here one step of it.

Nothing is imported here: what is stored of a round can be read without loading what decides one.
"""
