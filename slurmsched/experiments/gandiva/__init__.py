"""Gandiva_fair's figures, measured again (slides 14 and 15)."""
