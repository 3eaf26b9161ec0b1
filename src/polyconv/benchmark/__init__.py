"""Measuring: the machine's peaks, and how close polyconv comes."""
