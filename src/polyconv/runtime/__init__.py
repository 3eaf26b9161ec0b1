"""Awake things: memory, threads and the native call."""
