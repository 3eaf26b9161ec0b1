"""Loops written in Python, turned into machine code for this CPU."""
