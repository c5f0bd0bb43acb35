"""Data specs, paths and command lines as people elsewhere may read them: without the folders of the machine that
trained."""

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from tape_ds.data.sources.hub import HubDataset
from tape_ds.errors import redacted

_PATH = re.compile(r"(?<![\w/.])(?:~[^/\s:#\"',\]]*|\.{1,2})?/[^:#\"',\]]*")
"""A path from the root, from a home, or from ``.`` or ``..``, up to what ends one in a data spec or a list of them;
blanks may be part of it."""


def shown(text: str) -> str:
    """``text`` without credentials, and with every such path cut down to its last part; relative ones such as
    ``runs/demo`` stay."""
    return _PATH.sub(lambda path: Path(path.group()).name, redacted(text))


def command_line(words: Iterable[str]) -> str:
    """Return a command as it can be typed, see :func:`shown`."""
    return shlex.join(map(shown, words))


def hub_names(specs: Iterable[str]) -> list[str]:
    """Return names of the hub's data sets among ``specs``, once each, without revision, configuration, split or
    field."""
    names = (HubDataset(spec).name for spec in specs if spec.startswith(f"{HubDataset.kind}:"))
    return list(dict.fromkeys(name for name in names if name is not None))
