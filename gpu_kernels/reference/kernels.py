"""The set of ops that this package has."""

from .attention import attend
from .experts import align, combine, down, gate_up
from .kv import store
from .matrices import embed, linear
from .records import rms_norm, to_record
from .rope import rotate
from .routing import route
from .sampling import sample


class TorchKernels:
    """`Kernels` by torch, on any device; each op waits for what it computes."""

    waits = True
    embed = staticmethod(embed)
    rms_norm = staticmethod(rms_norm)
    to_record = staticmethod(to_record)
    linear = staticmethod(linear)
    rotate = staticmethod(rotate)
    store = staticmethod(store)
    attend = staticmethod(attend)
    route = staticmethod(route)
    align = staticmethod(align)
    gate_up = staticmethod(gate_up)
    down = staticmethod(down)
    combine = staticmethod(combine)
    sample = staticmethod(sample)
