"""Variables of this environment on every machine of a job.

DeepSpeed's launcher forwards a few (NCCL, Python, MPI); what else a run is told by the environment it drops: trackers,
the hub's token and caches, thread counts, this stack's own. It would take more from a file (``DS_ENV_FILE``), but puts
all of that into command lines, which it logs, and which everybody on a machine can read.

So each machine gets a small shell script of its own through ssh's input, readable by this user alone, in memory where
there is ``/dev/shm``; the launch reads it before anything else (``--venv_script``), and reading removes it.
"""

import os
import re
import secrets
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tape_ds.errors import Problem, raise_if_any
from tape_ds.training import verdict
from tape_ds.training.cluster import reach
from tape_ds.training.cluster.hostfile import Host

PREFIXES = (
    *(
        "TAPE_DS_",
        "DS_",
        "DEEPSPEED_",
        "ACCELERATE_",
        "TRITON_",
        "TORCH",
        "PYTORCH_",
        "CUDA_",
        "NCCL_",
        "GLOO_",
        "UCX_",
    ),
    *("FI_", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "HF_", "HUGGING_FACE_", "TRANSFORMERS_", "TOKENIZERS_", "WANDB_"),
    *("TENSORBOARD_", "MLFLOW_", "AWS_"),
)
"""Variables that begin so are forwarded."""
NAMES = (
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "LD_LIBRARY_PATH", "XDG_CACHE_HOME"),
)
"""And these."""
NEVER = ("CUDA_VISIBLE_DEVICES", "DS_ENV_FILE", "TORCHELASTIC_ERROR_FILE", verdict.FILE)
"""A machine's own, whatever they begin with."""

_WATCH = """\
( own=$(exec sh -c 'echo $PPID'); cat
for each in $$ $(pgrep -P $$ -f deepspeed.launcher.launch); do
[ "$each" = "$own" ] || kill -KILL "$each"; done ) <&0 >/dev/null 2>&1 &"""
"""Kills the launch, and nothing else, when its input ends: whoever held the other end of the connection is gone, while
pdsh's connections outlive pdsh. Its ranks then see that their launcher died, and commit. The shell may have become the
launch, or have it below: it goes first, for it would go on to its next command when the launch dies."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FOLDERS = ("/dev/shm", "/tmp")


def chosen(environ: Mapping[str, str], more: Iterable[str] = ()) -> dict[str, str]:
    """The variables that are forwarded.

    Args:
        environ: all of them.
        more: names of others.

    Raises:
        UserError: one of ``more`` is not set.
    """
    missing = [name for name in more if name not in environ]
    remedy = "set it, or leave it out"
    raise_if_any([Problem("--forward", name, "there is no such variable", remedy) for name in missing])
    wanted = {*NAMES, *more}
    return {
        name: value
        for name, value in sorted(environ.items())
        if (name in wanted or name.startswith(PREFIXES)) and name not in NEVER and _NAME.fullmatch(name)
    }


def script(values: Mapping[str, str], programs: Path, own: str, first: str | None = None) -> str:
    """A shell script that sets these variables, removes itself, and sees that the launch does not outlive its input.

    Args:
        values: by name.
        programs: a folder put before ``PATH``: a login without a terminal knows nothing of an activated environment.
        own: where it will lie.
        first: another script that it reads first.
    """
    lines = [f"rm -f -- {shlex.quote(own)}"]
    lines += [f". {shlex.quote(first)}"] if first is not None else []
    lines += [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
    return "\n".join([*lines, _WATCH, f'export PATH={shlex.quote(str(programs))}:"$PATH"', ""])


class Scripts:
    """A script on each machine, from :meth:`place` to :meth:`remove`.

    Args:
        answers: of the machines, in the order of their numbers.
        port: of their ssh servers.
        seconds: that a connection may take.
    """

    def __init__(self, answers: Sequence[reach.Answer], port: int | None, seconds: float):
        self.hosts = [answer.host for answer in answers]
        self.port = port
        self.seconds = seconds
        self._numbers = {host.name: number for number, host in enumerate(self.hosts)}
        folder = _FOLDERS[0 if all(answer.has_shared_memory for answer in answers) else 1]
        self._stem = f"{folder}/tape_ds-{secrets.token_hex(16)}"

    @property
    def pattern(self) -> str:
        """The script's path, ``%n`` for the machine's number, which pdsh puts in."""
        return f"{self._stem}.%n"

    def place(self, values: Mapping[str, str], programs: Path, first: str | None = None) -> None:
        """Write them.

        Raises:
            UserError: naming each machine that took none.
        """

        def one(host: Host) -> Problem | None:
            path = self._path(host)
            # noclobber: a file that somebody put there is not written into
            command = f"umask 077; set -C; cat > {path}"
            code, _, err = reach.tell(host, self.port, self.seconds, f"sh -c {shlex.quote(command)}", content(path))
            if code == 0:
                return None
            wrong = f"the environment's script cannot be written there: {err.strip() or f'exit code {code}'}"
            return Problem("environment", host.name, wrong, f"make room in {os.path.dirname(path)}")

        def content(path: str) -> str:
            return script(values, programs, path, first)

        try:
            raise_if_any([problem for problem in reach.of_each(self.hosts, one) if problem is not None])
        except BaseException:  # somebody's Ctrl-C as well: tokens would lie there until the machine's next start
            self.remove()
            raise

    def remove(self) -> None:
        """Remove those that nobody has read."""
        reach.of_each(
            self.hosts, lambda host: reach.tell(host, self.port, self.seconds, f"rm -f {self._path(host)}", "")
        )

    def _path(self, host: Host) -> str:
        return f"{self._stem}.{self._numbers[host.name]}"
