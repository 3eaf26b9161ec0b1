"""Convolutions as matrix products: ``pointwise`` and ``strassen``.

Weights, outputs by entries, are multiplied by inputs, entries by pixels; an entry is a channel of a tap.
"""
