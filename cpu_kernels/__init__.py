"""HOW on the CPU: SIMD vectors, thread team, packed tiles and the ops of a recorded program.

Imports numpy, numba and llvmlite only.
"""
