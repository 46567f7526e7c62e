"""HOW on the CPU: SIMD vectors, thread team, packed tiles and the ops of a recorded program. numpy, numba, llvmlite only."""
