"""Convolutions whose tiles have several output channels of a group: ``direct``, ``careful``, ``stem`` and ``woven``."""
