"""Convolutions of small integers by dot products of words, in eight ways; what they share stands beside them.

A word holds the channels or taps that one instruction multiplies and adds: four bytes, or two numbers of 16 bits.
``dense`` takes any problem, ``matrix`` those of bytes and bf16 by a CPU's matrix unit.  ``grouped`` and ``depthwise``
have the words of small groups in the lanes, ``lines``, ``pixels`` and ``matrix_pixels`` have neighbouring pixels of
channels-first maps there, ``patches`` those of a row.
"""
