"""Kernels of the GPU, each a function from a description to PTX.  They know nothing of problems, plans and drivers."""
