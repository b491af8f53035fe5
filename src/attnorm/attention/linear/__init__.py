"""Attention with a bias per key in linear memory: the kernels and their self-check."""
