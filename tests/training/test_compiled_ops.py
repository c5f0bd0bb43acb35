"""What DeepSpeed compiles for a run is said before, and a lock that a killed process left holds nothing up."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from torch.utils.file_baton import FileBaton

from tape_ds.errors import UserError
from tape_ds.training import compiled_ops, library_checks
from tests.config.loads import extension as load

ADAM = {"type": "AdamW", "params": {"lr": "auto"}}
OFFLOAD = {"stage": 2, "offload_optimizer": {"device": "cpu"}}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where fused_adam is compiled."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    return tmp_path / "fused_adam"


def recipe(**config):
    return SimpleNamespace(deepspeed=config, elsewhere=False)


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({}, []),
        ({"optimizer": ADAM}, ["fused_adam"]),
        ({"optimizer": {"type": "Adam", "params": {"torch_adam": True}}}, []),
        ({"optimizer": ADAM, "zero_optimization": OFFLOAD}, ["cpu_adam"]),
        ({"zero_optimization": OFFLOAD}, ["cpu_adam"]),
        ({"zero_optimization": OFFLOAD, "zero_force_ds_cpu_optimizer": True}, ["cpu_adam"]),
        ({"zero_optimization": OFFLOAD, "zero_force_ds_cpu_optimizer": False}, []),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none"}}}, []),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, ["async_io"]),
        ({"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, ["quantizer"]),
    ],
)
def test_which_are_needed(config, names):
    assert [each.name for each in compiled_ops.needed(config)] == names


def test_the_shipped_files_need_none():
    for name in ("zero1", "zero2", "zero2_offload", "zero3", "zero3_offload"):
        assert compiled_ops.needed(load(["--deepspeed", name], 1).deepspeed) == [], name


def test_the_classes_that_compile_are_the_installed_deepspeed_s():
    for name in compiled_ops._BUILDERS.keys() - {"quantizer"}:  # on GPUs alone
        assert compiled_ops.CompiledOp(name, "field", None, "remove it").builder().name == name


def test_it_is_said_before_it_is_compiled_and_after(folder):
    asked = recipe(optimizer=ADAM)
    said = compiled_ops.outline(asked.deepspeed)
    assert said.startswith(
        "DeepSpeed's fused_adam, for deepspeed.optimizer: compiled at the first start on a machine"
    )
    assert "a minute or two" in said and '"torch_adam": true' in said
    folder.mkdir(exist_ok=True)
    (folder / "fused_adam.so").touch()
    assert f"compiled here before, in {folder}" in compiled_ops.outline(asked.deepspeed)
    assert compiled_ops.outline(recipe().deepspeed) is None


@pytest.mark.parametrize(
    ("missing", "wrong"),
    [("c++", "there is no C++ compiler here"), ("ninja", "there is no ninja here")],
)
def test_what_compiling_takes_is_missed_before_a_run(folder, tmp_path, monkeypatch, missing, wrong):
    """It was a traceback once the model was loaded."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in {"c++", "ninja"} - {missing}:
        (programs / name).write_text("#!/bin/sh\necho 1.11\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("CXX", raising=False)
    asked = load([], 1)
    asked.deepspeed["optimizer"] = ADAM
    (problem,) = library_checks.check(asked)
    assert (
        problem.field == "deepspeed.optimizer"
        and wrong in problem.wrong
        and "torch_adam" in problem.remedy
    )
    folder.mkdir(exist_ok=True)
    (folder / "fused_adam.so").touch()
    assert library_checks.check(asked) == [], "compiled before"


def test_a_place_that_cannot_be_written_to_is_named(monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", "/proc/none")
    (problem,) = compiled_ops.check(recipe(optimizer=ADAM).deepspeed)
    assert (problem.field, problem.value) == ("TORCH_EXTENSIONS_DIR", "/proc/none")


class Builder:
    """Compiles as torch does: under its lock, which a process that is killed leaves behind."""

    error = None

    def __init__(self, folder):
        self.folder = folder

    def load(self, verbose):
        baton = FileBaton(str(self.folder / "lock"))
        assert baton.try_acquire(), "it would wait without an end"
        try:
            if self.error:
                raise self.error
            (self.folder / "fused_adam.so").touch()
        finally:
            baton.release()


@pytest.fixture
def builder(folder, monkeypatch):
    monkeypatch.setattr(
        compiled_ops.CompiledOp, "builder", lambda extension: Builder(extension.folder())
    )
    monkeypatch.setattr(compiled_ops, "_QUEUE_SECONDS", 0.05)
    folder.mkdir()
    return folder


def test_a_lock_of_a_killed_process_is_removed_and_named(builder, capsys):
    """The next run waited for it for ever, without a word."""
    (builder / "lock").touch()
    compiled_ops.compile_all(recipe(optimizer=ADAM).deepspeed)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"removed {builder}/lock: of a process that was killed while it compiled"
    assert said[1].startswith(f"compiling DeepSpeed's fused_adam in {builder}: ")
    assert said[2].startswith("compiled in ") and not (builder / "lock").exists()
    compiled_ops.compile_all(recipe(optimizer=ADAM).deepspeed)
    assert capsys.readouterr().out == "", "the second time there is nothing to say"


HOLDS = """
import os, sys, time
held = os.open(sys.argv[1], os.O_CREAT | os.O_EXCL)  # as torch's FileBaton, without seconds of importing torch
print("has it", flush=True)
time.sleep(60)
"""


def test_a_living_process_is_waited_for(builder, capsys):
    baton = FileBaton(str(builder / "lock"))
    baton.try_acquire()
    assert compiled_ops._holder(builder / "lock") == os.getpid(), "torch's own keeps it open"
    baton.release()
    line = [sys.executable, "-c", HOLDS, str(builder / "lock")]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as living:
        assert living.stdout.readline() == b"has it\n"
        assert compiled_ops._holder(builder / "lock") == living.pid
        said = []

        def say(text):
            said.append(text)
            living.kill()  # in the middle of it, as a scheduler might

        compiled_ops._free(builder, say)
    assert said == [
        f"waiting for {builder}/lock: process {living.pid} compiles there",
        f"removed {builder}/lock: of a process that was killed while it compiled",
    ]


def test_on_a_disk_of_several_machines_a_lock_stays_while_something_changes(builder, monkeypatch):
    monkeypatch.setattr(compiled_ops, "_OF_ONE_MACHINE", ())
    monkeypatch.setattr(compiled_ops, "_SHARED_SECONDS", 600)
    (builder / "lock").touch()
    said = []

    def say(text):
        said.append(text)
        if (builder / "lock").exists():
            long_ago = time.time() - 700
            os.utime(builder / "lock", (long_ago, long_ago))

    compiled_ops._free(builder, say)
    assert (
        "another machine may compile there" in said[0]
        and said[1].startswith("removed ")
        and len(said) == 2
    )


def test_a_compiler_that_fails_is_a_message(builder, monkeypatch):
    error = RuntimeError(
        "Error building extension 'fused_adam': [1/3]\nx.cpp:1: fatal error: Python.h: No such file"
    )
    monkeypatch.setattr(Builder, "error", error)
    with pytest.raises(
        UserError, match=r"fused_adam cannot be compiled: .*\n +remedy: remove the block"
    ):
        compiled_ops.compile_all(recipe(optimizer=ADAM).deepspeed)


@pytest.mark.slow
def test_deepspeed_s_adam_is_compiled_and_found_again(folder, capsys):
    asked = recipe(optimizer=ADAM)
    folder.mkdir()
    (folder / "lock").touch()
    compiled_ops.compile_all(asked.deepspeed)
    (extension,) = compiled_ops.needed(asked.deepspeed)
    assert extension.is_compiled() and not (folder / "lock").exists()
    assert hasattr(extension.builder().load(), "multi_tensor_adam")
