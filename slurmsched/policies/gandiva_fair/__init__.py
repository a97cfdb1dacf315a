"""Gandiva_fair (Chaudhary et al., EuroSys 2020): ticket-fair split stride scheduling with GPU trading."""
