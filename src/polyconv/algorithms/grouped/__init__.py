"""Convolutions in groups, or of few outputs: ``channel_sums``, ``grouped``, ``in_place`` and ``in_planes``."""
