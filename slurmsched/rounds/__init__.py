"""A scheduling round between observing and applying, all of it pure: `round.run_round` calls the other modules.

Nothing is imported here, so that stored explanations can be read without loading the policies.
"""
