"""Tesserae: packing and migration as graph matching, under any order of jobs."""
