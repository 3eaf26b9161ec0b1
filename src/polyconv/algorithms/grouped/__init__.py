"""Convolutions in groups: ``grouped``, ``in_place`` and ``in_planes``."""
