"""Convolution on NVIDIA GPUs: kernels generated from Python through LLVM, launched through the driver.

No toolkit and no compiler is needed: LLVM writes PTX, the driver that comes with the GPU makes code of it.  Where there
is no driver or no GPU this target is absent, with a reason.
"""
