"""Hadar (Sultana et al., 2025): primal-dual prices; a gang may run on GPUs of several types where that pays."""
