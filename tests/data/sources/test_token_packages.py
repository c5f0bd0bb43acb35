"""Token files as the field's own packages write them, read to the id and the document end."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest

from tape_ds.data.sources import parse_all
from tests.data.sources import token_writers
from tests.data.sources.token_programs import PACKAGES

ROOT = Path(__file__).resolve().parents[3]
EOS = 2


def documents():
    rng = np.random.default_rng(0)
    return [[*rng.integers(3, 60_000, int(size)).tolist(), EOS] for size in rng.integers(1, 400, 7)]


def python_with(name, package):
    """The interpreter of an environment that has a package, and what is installed here."""
    if package is None:
        return sys.executable
    folder = ROOT / ".cache" / "token_packages" / package.split()[0]
    python = folder / "bin" / "python"
    if (folder / "ready").exists():
        return str(python)
    venv.create(folder, with_pip=True, symlinks=True)
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(
        subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    )
    (packages / "here.pth").write_text(sysconfig.get_path("purelib"))
    command = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        *package.split(),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    except subprocess.TimeoutExpired:
        pytest.skip(f"pip install {package} took longer than 20 minutes")
    if done.returncode:
        pytest.skip(f"pip install {package} failed: {done.stderr.strip().splitlines()[-1]}")
    (folder / "ready").touch()
    return str(python)


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKAGES)
def test_what_a_package_writes_is_read(name, tmp_path):
    program, package, written = PACKAGES[name]
    head = f"folder = {str(tmp_path)!r}\nEOS = {EOS}\ndocuments = {json.dumps(documents())}\n"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [python_with(name, package), "-c", head + program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    for file, options in written.items():
        (source,) = parse_all([f"tokens:{tmp_path}/{file}{options}"])
        assert [ids.tolist() for _, ids in source.token_rows()] == documents(), file
        if name == "datatrove":
            assert source.made_with() == "gpt2"


@pytest.mark.slow
def test_our_files_by_bytes_are_those_of_the_packages(tmp_path):
    """The default tests write these formats by their bytes."""
    for name in ("megatron", "datatrove", "litdata", "mds"):
        test_what_a_package_writes_is_read(name, tmp_path)
    theirs = tmp_path
    ours = tmp_path / "ours"
    ours.mkdir()
    for dtype in ("uint16", "int32"):
        token_writers.megatron(ours / f"megatron_{dtype}", documents(), dtype, sentences=2)
        for suffix in (".bin", ".idx"):
            same_bytes(theirs, ours, f"megatron_{dtype}{suffix}")
    for width in (2, 4):
        token_writers.datatrove(ours / f"datatrove_{width}.ds", documents(), f"uint{8 * width}")
        for suffix in ("", ".index"):
            same_bytes(theirs, ours, f"datatrove_{width}.ds{suffix}")
    for dtype in ("int32", "uint16"):
        chunks = json.loads((theirs / f"litdata_{dtype}_None" / "index.json").read_text())["chunks"]
        done = 0
        for chunk in chunks:
            part = documents()[done : done + chunk["chunk_size"]]
            done += len(part)
            written = token_writers.litdata(
                ours / f"{dtype}_{done}", part, dtype, chunk_rows=len(part)
            )
            same = (theirs / f"litdata_{dtype}_None" / chunk["filename"]).read_bytes()
            assert (written / "chunk-0-0.bin").read_bytes() == same, chunk["filename"]
        assert done == len(documents())
    for name, dtype, encoding in (
        ("fixed", "int32", None),
        ("free", "uint16", "ndarray"),
        ("bytes", "int64", "bytes"),
    ):
        folder = theirs / f"mds_{name}_None"
        rows = [
            shard
            for shard in json.loads((folder / "index.json").read_text())["shards"]
            if shard["samples"]
        ]
        assert [shard["samples"] for shard in rows] == [1] * len(documents())
        written = token_writers.mds(
            ours / name, documents(), dtype, encoding, shard_rows=1, size_limit=100
        )
        for number, shard in enumerate(rows):
            same = (folder / shard["raw_data"]["basename"]).read_bytes()
            assert (written / f"shard.{number:05d}.mds").read_bytes() == same, (name, number)


def same_bytes(theirs, ours, name):
    assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name
