"""What a machine can do, as numbers, and where they come from: presets, a file, or measured once."""
