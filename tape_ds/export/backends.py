"""What chooses the attention backend in an exported model: torch's own attention, or plain matrices on request."""

from tape_ds.errors import did_you_mean
from tape_ds.model.attention.call import Call
from tape_ds.model.attention.names import available, requested


def choose(backend: str, call: Call) -> str:
    """The backend that ``backend`` stands for in this call; "auto" is ``sdpa``, on any device.

    Raises:
        ValueError: it is unknown.
    """
    name = requested(backend)
    if name == "auto":
        return "sdpa"
    if name not in available():
        raise ValueError(f"attention backend {name!r} is unknown; {did_you_mean(name, ['auto', *available()])}")
    return name
