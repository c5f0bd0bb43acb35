"""Remove this machine's folders from data specs, paths and command lines before they are published."""

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from tape_ds.data.sources.hub import HubDataset
from tape_ds.errors import redacted

# from the root, a home folder, `.` or `..` up to what ends a path in a data spec or a list; may contain blanks
_PATH = re.compile(r"(?<![\w/.])(?:~[^/\s:#\"',\]]*|\.{1,2})?/[^:#\"',\]]*")


def shown(text: str) -> str:
    """Return ``text`` without credentials, paths cut to their last part; relative ones (``runs/demo``) stay."""
    return _PATH.sub(lambda path: Path(path.group()).name, redacted(text))


def command_line(words: Iterable[str]) -> str:
    """Return a command as it can be typed, each word as :func:`shown`."""
    return shlex.join(map(shown, words))


def hub_names(specs: Iterable[str]) -> list[str]:
    """Return the names of the hub data sets among ``specs``, without revision, configuration, split or field."""
    names = (HubDataset(spec).name for spec in specs if spec.startswith(f"{HubDataset.kind}:"))
    return list(dict.fromkeys(name for name in names if name is not None))
