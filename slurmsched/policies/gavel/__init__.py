"""Gavel (Narayanan et al., OSDI 2020): optimal time fractions on GPU types, and rounds that realise them."""
