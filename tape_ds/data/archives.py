"""Archives from outside: which of them are refused before anything in them is read.

Nothing is ever unpacked to the disk: a member is read as a stream, under its whole name, so that none can be written
where it says. An archive with a member that would, had it been unpacked, is refused all the same, by that member's
name: whoever made it meant harm, or it is not what it is taken for. So is one that would fill the memory: a member's
size stands in the archive, and no more than that is ever read of it, but the size may be absurd.
"""

import re
import stat
import tarfile
import zipfile
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

LARGE = 2**30
"""Bytes that may come out of anything, however small it was."""
RATIO = 1000
"""Bytes that may come out of one, beyond that: text of any language gives 3 to 10."""

_LARGEST = 2**63
REMEDY = "make it anew from files that you know, or take it from where it was published"


class UnsafeArchiveError(ValueError):
    """An archive that is not read; says which member is wrong and how."""


class Member(NamedTuple):
    """What an archive says of a file in it."""

    name: str
    size: int
    """Bytes that come out."""
    packed: int
    """Bytes that they are stored in."""
    link: bool
    """Whether it is no file but points to one."""


def check_zip(archive: zipfile.ZipFile) -> None:
    """Refuse a zip file with a member that no archive of data has.

    Raises:
        UnsafeArchiveError: naming it.
    """
    _check(
        Member(each.filename, each.file_size, each.compress_size, stat.S_ISLNK(each.external_attr >> 16))
        for each in archive.infolist()
    )


def check_tar(archive: tarfile.TarFile, size: int) -> None:
    """The same for a tar file of ``size`` bytes; of its members it is not known what each is packed to.

    Raises:
        UnsafeArchiveError: naming it.
    """
    members = archive.getmembers()
    _check(Member(each.name, each.size, size, not (each.isfile() or each.isdir())) for each in members)


def check_filesystem(filesystem: "AbstractFileSystem") -> None:
    """The same for what fsspec reads as an archive (``zip://``, ``tar://``); other file systems pass.

    Raises:
        UnsafeArchiveError: naming it.
    """
    if isinstance(archive := getattr(filesystem, "zip", None), zipfile.ZipFile):
        check_zip(archive)
    if isinstance(archive := getattr(filesystem, "tar", None), tarfile.TarFile):
        packed = getattr(filesystem, "of", None)  # the file that the archive is, where it was opened by its address
        check_tar(archive, packed.fs.size(packed.path) if packed is not None else _LARGEST)


def too_much(given: int, taken: int) -> bool:
    """Whether ``given`` bytes out of ``taken`` are more than any data give."""
    return given > LARGE and given > RATIO * taken


def _check(members: Iterable[Member]) -> None:
    for member in members:
        if wrong := _wrong(member):
            raise UnsafeArchiveError(f"the archive's member {member.name!r} {wrong}")


def _wrong(member: Member) -> str | None:
    if member.name.startswith(("/", "\\")) or re.match("[A-Za-z]:", member.name):
        return "is named by an absolute path"
    if ".." in re.split(r"[/\\]", member.name):
        return "is named by a path that leads out of the archive"
    if member.link:
        return "is a link, or a device, not a file"
    if too_much(member.size, member.packed):
        return f"would grow to {member.size:,} bytes out of {member.packed:,}"
    return None
