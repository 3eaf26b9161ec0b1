"""Winograd's convolution, for floats and for 8-bit integers.

Along one axis, m outputs of r taps take m + r - 1 products instead of m r:

    Y = A^T [(G g) * (B^T d)]

d are the m + r - 1 inputs that the outputs Y meet, g the taps; * multiplies element by element.  G g and B^T d are the
values of polynomials at m + r - 1 points, one of them infinity; A^T leads back from there.  Along two axes the same is
done along one, then along the other: Y = A^T [(G g G^T) * (B^T d B)] A.  Sums over input channels, and over taps of
other axes, are taken at the points, so the products of a point are a matrix product.  ``kernels/transform.py`` has the
matrices, and how opposite points share their work.

* ``channels``: lanes are output channels.  ``schemes`` and ``tiles`` say what can be computed, ``case`` what follows
  for a sweep, ``boxes`` how it is cut, ``cost`` what it takes; ``program`` and ``tables`` fill the ``words`` that
  generated code reads, which ``driver``, ``inputs`` and ``repair`` write; ``weights`` transforms weights.
* ``rows`` and ``groups``, for groups of few channels: lanes are pixels, or the channels of several groups.  Both
  transform columns of the image only; ``columns`` has what they share, ``rows_driver`` the code for ``rows``.
* ``integers``: 8-bit inputs and weights, exactly.
"""
