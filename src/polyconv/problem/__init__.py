"""The one normal form of a convolution, and the only definition of the right answer."""
