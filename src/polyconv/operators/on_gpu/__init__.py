"""Kernels of a GPU for operators beside convolution, made of the same plans as those of the CPU."""
