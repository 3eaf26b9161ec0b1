"""Transposed convolutions along planes, the phases of the last axis woven together: ``woven``."""
