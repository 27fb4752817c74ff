"""Triton kernels of the depth-mixing operations, forward and backward; derivations in README.md."""
