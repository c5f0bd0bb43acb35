"""How CUDA's caching allocator is set up: by the environment, which it reads once, when it first hands out memory."""

import os

NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Variables that torch reads; any of them, set by the user, is the user's word on the matter."""
EXPANDABLE = "expandable_segments:True"


def expand_segments(wanted: bool = True) -> bool:
    """Let segments grow, where that is ``wanted`` and the environment does not configure the allocator already.

    Rows of changing length leave holes between segments of fixed size that nothing fits into; a segment that grows has
    none. To be called before anything lies on a GPU; on a machine without one it does nothing.

    Returns:
        Whether it was set here.
    """
    if not wanted or any(name in os.environ for name in NAMES):
        return False
    os.environ[NAMES[0]] = EXPANDABLE
    return True
