"""Is everything as it should be, and if not, what mends it?"""
