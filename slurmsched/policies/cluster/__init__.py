"""The cluster and the demand on it: pools of GPUs, free resources, eligibility, gangs, resource demands."""
