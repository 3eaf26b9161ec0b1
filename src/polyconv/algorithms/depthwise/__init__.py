"""Convolutions with one input channel a group, in five ways; what they share stands beside them.

``slide`` computes all of them in place: a window slides along one axis.  ``last`` does so over a copy, ``block`` and
``plane`` compute 3x3 taps of maps, ``line`` taps along the last axis.
"""
