"""Convolutions whose tiles have several output channels of a group in the lanes: ``direct`` and ``stem``."""
