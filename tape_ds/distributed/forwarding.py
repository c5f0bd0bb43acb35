"""A ``deepspeed --hostfile`` command whose ranks get this environment, and the arguments as they were typed.

DeepSpeed forwards a few variables (NCCL, Python, MPI), and others from its environment file by command lines, which it
logs and everybody on a machine can read. So each machine gets a small shell script through ssh's input, in memory and
readable by this user alone; the launch reads it before anything else (``--venv_script``), and reading removes it.
"""

import contextlib
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from tape_ds.distributed import ssh
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.resilience import exit_code_file
from tape_ds.resilience.stopping import RUNNER

FORWARDED = re.compile(
    r"(TAPE_DS|DS|DEEPSPEED|ACCELERATE|TRITON|PYTORCH|CUDA|NCCL|GLOO|UCX|FI|OMP|MKL|KMP|OPENBLAS|HF|HUGGING_FACE)_\w+"
    r"|(TRANSFORMERS|TOKENIZERS|WANDB|TENSORBOARD|MLFLOW|AWS)_\w+|TORCH\w+|(HTTPS?|NO)_PROXY|(https?|no)_proxy"
    r"|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE|LD_LIBRARY_PATH|XDG_CACHE_HOME",
    re.ASCII,
)
"""Variables that the machines get."""
NEVER = ("CUDA_VISIBLE_DEVICES", "DS_ENV_FILE", "TORCHELASTIC_ERROR_FILE", exit_code_file.FILE)
"""A machine's own, whatever they begin with."""

_WATCH = """\
( own=$(exec sh -c 'echo $PPID'); cat
for each in $$ $(pgrep -P $$ -f deepspeed.launcher.launch); do
[ "$each" = "$own" ] || kill -KILL "$each"; done ) <&0 >/dev/null 2>&1 &"""
"""Kills the launch, and nothing else, when its input ends: whoever held the other end of the connection is gone, while
pdsh's connections outlive pdsh. Its ranks then see that their launcher died, and commit. The shell may have become the
launch, or have it below: it goes first, for it would go on to its next command when the launch dies."""
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def start(command: Sequence[str], forward: Sequence[str]) -> int:
    """Start a command on its machines, pass signals on, and clear up behind it; returns its exit code, 128 + N of a
    signal's.

    Args:
        command: as it is typed.
        forward: names of further variables that the machines get.

    Raises:
        UserError: it does not run DeepSpeed's launcher, its hostfile cannot be used, or a machine is not reached.
    """
    from deepspeed.launcher import runner

    place = next((number for number, part in enumerate(command) if PurePath(part).name in RUNNER), None)
    if place is None or shutil.which(command[0]) is None:
        wrong = "it does not run deepspeed" if place is None else f"there is no program {command[0]}"
        remedy = "tape-ds on-hosts deepspeed --hostfile hosts launchers/extend_llama.py --recipe NAME"
        raise UserError(Problem("command", " ".join(command), wrong, remedy))
    words = list(command[place + 1 :])
    asked = runner.parse_args(words)
    values, hosts = variables(os.environ, forward), machines(asked)
    options = words[: len(words) - len(asked.user_args) - 1]
    # DeepSpeed quotes the arguments alone, and starts the ranks of a single machine here
    script = shlex.quote(asked.user_script).replace("%", "%%")
    shown = tuple(prefix for prefix in runner.EXPORT_ENVS if prefix != "PYTHON")  # put on its command line: MLflow's
    environment = {name: value for name, value in os.environ.items() if not (name in values and name.startswith(shown))}
    with placed(hosts, asked.ssh_port, values, asked.venv_script) as path:
        print(f"on_hosts: {len(hosts)} machines answer; forwarded: {', '.join(values) or 'nothing'}", flush=True)
        options += ["--venv_script", path, "--force_multi", script, *map(for_pdsh, asked.user_args)]
        return _see_through([*command[: place + 1], *options], environment)


def machines(asked: Namespace) -> list[str]:
    """Return the machines that a command takes of its hostfile, as DeepSpeed chooses them.

    Raises:
        UserError: it takes none by pdsh.
    """
    from deepspeed.launcher import runner

    if asked.no_ssh or asked.launcher.lower() != "pdsh":
        remedy = "leave tape-ds on-hosts away: such a launch brings each machine's own environment"
        raise UserError(Problem("command", "--no_ssh, --launcher", "machines are reached by pdsh alone", remedy))
    slots = ssh.slots_of(Path(asked.hostfile))
    try:
        chosen = runner.parse_inclusion_exclusion(slots, asked.include, asked.exclude)
    except ValueError as error:
        named = asked.include or asked.exclude
        raise UserError(Problem("--include, --exclude", named, str(error), "name machines of the hostfile")) from error
    return list(runner.apply_num_nodes_and_gpus(chosen, asked.num_nodes, -1))


def variables(environ: Mapping[str, str], more: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables that are forwarded.

    Args:
        environ: all of them.
        more: names of others.

    Raises:
        UserError: one of ``more`` is not set.
    """
    missing = [name for name in more if name not in environ]
    remedy = "set it, or leave it out"
    raise_if_any([Problem("--forward", name, "there is no such variable", remedy) for name in missing])
    return {
        name: value
        for name, value in sorted(environ.items())
        if (name in more or FORWARDED.fullmatch(name)) and name not in NEVER
    }


def script(values: Mapping[str, str], own: str, first: str | None = None) -> str:
    """Return a shell script that sets these variables, removes itself, and sees that the launch does not outlive its
    input.

    Args:
        values: by name.
        own: where it will lie.
        first: another script that it reads first.
    """
    lines = [f"rm -f -- {shlex.quote(own)}"]
    lines += [] if first is None else [f". {shlex.quote(first)}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
    # a login without a terminal knows nothing of an activated environment
    return "\n".join([*lines, _WATCH, f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"', ""])


@contextlib.contextmanager
def placed(
    hosts: Sequence[str], port: int | None, values: Mapping[str, str], first: str | None = None
) -> Iterator[str]:
    """A script on each machine for as long as this lasts; its path, with pdsh's ``%n`` for the machine's number.

    Raises:
        UserError: naming each machine that took none, with what ssh said.
    """
    stem = f"/dev/shm/tape_ds-{secrets.token_hex(16)}"
    paths = {host: f"{stem}.{number}" for number, host in enumerate(hosts)}
    # noclobber: a file that is there already is not written into
    writing = {
        host: (f"sh -c 'umask 077; set -C; cat > {path}'", script(values, path, first)) for host, path in paths.items()
    }
    remedy = "docs/multi_node.md says what to do about what ssh says"
    try:
        failed = ssh.tell_each(writing, port)
        raise_if_any([Problem("--hostfile", host, output.splitlines()[-1], remedy) for host, output in failed.items()])
        yield f"{stem}.%n"
    finally:  # those that no launch has read, whatever happened: tokens would lie there until the machine's next start
        ssh.tell_each({host: (f"rm -f {path}", "") for host, path in paths.items()}, port)


def for_pdsh(word: str) -> str:
    """Return a word that arrives as it is behind DeepSpeed, pdsh and a shell.

    DeepSpeed puts quotes around words with spaces alone, and leaves what a shell does with the rest: ``{"a":1}`` would
    lose its quotes, ``$`` and ``*`` be replaced. pdsh replaces ``%h``, ``%n`` and ``%u``.
    """
    word = word.replace("%", "%%")
    return re.sub(r"([\\$`])", r"\\\1", word) if " " in word else shlex.quote(word)


def _see_through(line: Sequence[str], environment: Mapping[str, str]) -> int:
    """On other machines its input ends with this process, however that ends, and by that the launches there know."""
    running = subprocess.Popen(line, stdin=subprocess.PIPE, env=environment)
    for number in _SIGNALS:  # SIGTERM is the one that DeepSpeed's runner hands to the machines
        signal.signal(number, lambda number, frame: running.send_signal(signal.SIGTERM))
    signal.signal(signal.SIGINT, lambda number, frame: None)  # a terminal's reaches the runner by itself
    code = running.wait()
    return code if code >= 0 else 128 - code
