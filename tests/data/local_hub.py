"""The Hugging Face hub's file system in memory: what ``hf://`` means while a test runs."""

from contextlib import contextmanager

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class LocalHub(MemoryFileSystem):
    """Files by ``datasets/NAME[@REVISION]/PATH``, of one store for all."""

    protocol = "hf"
    store = {}
    pseudo_dirs = [""]
    opened = []

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.removeprefix("hf://").strip("/")

    def _open(self, path, *args, **options):
        LocalHub.opened.append(path)
        return super()._open(path, *args, **options)


@contextmanager
def local_hub(files):
    """``hf://`` with these files, bytes by path; yields the list of paths that are opened."""
    real = fsspec.get_filesystem_class("hf")
    fsspec.register_implementation("hf", LocalHub, clobber=True)
    hub = LocalHub()
    for path, contents in files.items():
        hub.pipe_file(f"hf://{path}", contents)
    LocalHub.opened.clear()
    try:
        yield LocalHub.opened
    finally:
        LocalHub.store.clear()
        fsspec.register_implementation("hf", real, clobber=True)
