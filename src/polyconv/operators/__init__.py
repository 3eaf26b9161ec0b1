"""Operators beside convolution, on generated kernels: arrays in, arrays out.

``taken`` is asked with an operator of ONNX and what is known of its inputs; it gives what runs, or None where the
operator, its types or its attributes are none of those done here.  The one idea: a file a family, a table that asks
them in turn, and the pool of threads that convolutions use.
"""
