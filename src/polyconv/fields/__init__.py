"""Filters of arrays without channels, which ``polyconv.ndimage`` calls: sums over windows, borders of all modes."""
