"""What all tests share."""

import os

# Triton's kernels run in its interpreter, which works on NumPy arrays and needs no graphics card. Triton asks for this
# as soon as it is imported, and some libraries do so.
os.environ["TRITON_INTERPRET"] = "1"
