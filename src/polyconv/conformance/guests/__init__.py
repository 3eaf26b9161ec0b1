"""Other engines as witnesses: each file here runs inside its own process and imports its guest there only."""
