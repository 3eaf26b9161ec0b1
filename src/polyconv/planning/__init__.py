"""Choosing how a problem is computed."""
