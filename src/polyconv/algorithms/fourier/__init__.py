"""The algorithm ``fft``: tiles become spectra, are multiplied by those of the kernel, and come back."""
