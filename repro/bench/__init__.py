"""Measurements of the mechanism itself: compiled kernels, memory traffic, step times."""
