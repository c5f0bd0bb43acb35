"""Which archives from outside are refused before anything in them is read.

Nothing is unpacked to the disk: a member is read as a stream, by its whole name. All the same an archive is refused
when a member's name or kind would lead out of a folder, had it been unpacked: whoever made it meant harm, or it is not
what it is taken for. So is one whose member says that it would fill the memory.
"""

import re
import stat
import tarfile
import zipfile

LARGE = 2**30
"""Bytes that may come out of anything, however small it was."""
RATIO = 1000
"""Bytes that may come out of one, beyond that: text of any language gives 3 to 10."""

REMEDY = "make it anew from files that you know, or take it from where it was published"


class UnsafeArchiveError(ValueError):
    """An archive that is not read; says which member is wrong and how."""


def check(archive: zipfile.ZipFile | tarfile.TarFile, size: int | None = None) -> None:
    """Refuse an archive with a member that no archive of data has.

    Args:
        archive: open for reading.
        size: bytes of a tar file, which does not say what each member is packed to; None: unknown, any are allowed.

    Raises:
        UnsafeArchiveError: naming the member.
    """
    if isinstance(archive, zipfile.ZipFile):
        for member in archive.infolist():
            link = stat.S_ISLNK(member.external_attr >> 16)
            _check_member(member.filename, link, member.file_size, member.compress_size)
    else:
        for entry in archive.getmembers():
            _check_member(entry.name, not (entry.isfile() or entry.isdir()), entry.size, size or entry.size)


def too_much(given: int, taken: int) -> bool:
    """Whether ``given`` bytes out of ``taken`` are more than any data give."""
    return given > LARGE and given > RATIO * taken


def _check_member(name: str, link: bool, size: int, packed: int) -> None:
    if name.startswith(("/", "\\")) or re.match("[A-Za-z]:", name):
        wrong = "is named by an absolute path"
    elif ".." in re.split(r"[/\\]", name):
        wrong = "is named by a path that leads out of the archive"
    elif link:
        wrong = "is a link, or a device, not a file"
    elif too_much(size, packed):
        wrong = f"would grow to {size:,} bytes out of {packed:,}"
    else:
        return
    raise UnsafeArchiveError(f"the archive's member {name!r} {wrong}")
