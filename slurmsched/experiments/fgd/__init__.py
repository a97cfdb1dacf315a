"""Fragmentation gradient descent (Weng et al., ATC 2023): its inflation experiment on Alibaba's openb trace."""
