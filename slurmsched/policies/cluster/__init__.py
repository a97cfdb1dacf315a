"""What there is and what is asked for: pools of GPUs, free resources, eligibility, gangs and their demand."""
