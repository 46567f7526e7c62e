"""HOW on an accelerator: the op set of `cpu_kernels` as torch reference and Triton kernels."""
