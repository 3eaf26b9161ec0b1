"""How a convolution is computed: one algorithm a file, each one row of the table in ``table.py``."""
