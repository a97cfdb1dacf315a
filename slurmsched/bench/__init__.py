"""How fast a decision and a round are."""
