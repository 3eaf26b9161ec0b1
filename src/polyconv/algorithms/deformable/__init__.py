"""Deformable convolution: bilinear samples, then products of a panel."""
