"""One attention for every positional encoding: :func:`tape_ds.attention.attend.attend`. Here is what a
configuration is checked with, without torch.
"""

from tape_ds.attention.names import available, check_backend, missing, requested

__all__ = ["available", "check_backend", "missing", "requested"]
