"""Triton kernels, each in the language as of Triton 3.3; no launch logic here."""
