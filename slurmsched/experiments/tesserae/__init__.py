"""Replay of Tesserae's evaluation (section 6.3): 80 GPUs of one type, 900 jobs, rounds of six minutes."""
