"""The loop in time: rounds, settle passes, signs of life, and giving everything back."""
