"""Convolutions in groups, or of few outputs: ``channel_sums``, ``in_place`` and ``in_planes``."""
