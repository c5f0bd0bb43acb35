"""Whether machines can be reached by ssh and have what a run needs: asked of all at once, before anything starts.

DeepSpeed asks the first machine alone, and tells of every trouble that it was "not reachable". Here each machine is
asked the same small program, over the same connection as pdsh will make (its ``PDSH_SSH_ARGS_APPEND`` and port), and
what ssh says is told with its remedy. Nothing asks for a password: what would, fails.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tape_ds.errors import Problem
from tape_ds.training.cluster.hostfile import Host

T = TypeVar("T")

MOST_AT_ONCE = 64
"""Connections at a time."""
SSH_ARGUMENTS = "PDSH_SSH_ARGS_APPEND"
"""The variable with which pdsh is told of further options of ssh."""

_MARK = "tape_ds:"
"""Begins each line of an answer: machines greet as they like."""
_SAID: tuple[tuple[str, str, str], ...] = (
    ("Could not resolve hostname", "no machine of this name is known here", "mend the name, or add it to /etc/hosts"),
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is another than before",
        "if it was set up anew: `ssh-keygen -R {name}`, then `ssh {name}` once; if not, find out who answers",
    ),
    ("Host key verification failed", "its host key is not known here", "`ssh {name}` once, and compare the key"),
    ("Permission denied", "ssh does not let this user in without a password", "`ssh-copy-id {name}`"),
    ("Connection refused", "no ssh server answers at that port", "start sshd there, or give its port: --ssh_port"),
    ("timed out", "it does not answer", "see that it is up, and that a firewall lets ssh through"),
    ("No route to host", "it cannot be reached over the network", "see that it is up, and on the same network"),
    ("Network is unreachable", "it cannot be reached over the network", "see that it is up, and on the same network"),
)
"""What ssh says, what it means, and the remedy."""

_SCRIPT = """
say() {{ printf '{mark}%s=%s\\n' "$1" "$2"; }}
say hostname "$(uname -n)"
say machine "$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)"
say addresses "$(hostname -I 2>/dev/null)"
if [ -d /dev/shm ] && [ -w /dev/shm ]; then say memory yes; fi
cd {folder} 2>/dev/null || exit 0
say folder yes
if [ -e {script} ]; then say script yes; fi
if [ -x {python} ]; then {python} - <<'END'
{program}
END
fi
"""
_PROGRAM = """
import platform, socket
print("{mark}python=" + platform.python_version())
try:
    socket.getaddrinfo({address!r}, {port})
    print("{mark}resolves=yes")
except OSError:
    pass
probe = socket.socket()
probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
try:
    probe.bind(("", {port}))
    print("{mark}port=free")
except OSError:
    pass
"""


@dataclass(frozen=True)
class Needs:
    """What a run needs on every machine."""

    folder: Path
    """The folder it is started in."""
    script: str | None
    """The file that ranks run, as it is called from there; None: it is no file."""
    python: Path
    """The interpreter."""
    version: str
    """Its version."""
    master_address: str | None
    """Where the others find the first machine; None: at its own first address."""
    master_port: int


@dataclass(frozen=True)
class Answer:
    """What a machine says of itself."""

    host: Host
    said: Mapping[str, str] = field(default_factory=dict)
    trouble: str = ""
    """What ssh said, where there was no answer."""

    @property
    def address(self) -> str | None:
        """Its first address on the network."""
        return next(iter(self.said.get("addresses", "").split()), None)

    @property
    def hostname(self) -> str:
        """Its name for itself."""
        return self.said.get("hostname", "")

    @property
    def machine(self) -> str:
        """What tells it from every other machine, whatever they are called."""
        return self.said.get("machine", "")

    @property
    def has_shared_memory(self) -> bool:
        """Whether it has ``/dev/shm``."""
        return "memory" in self.said


def ssh(name: str, port: int | None, seconds: float) -> list[str]:
    """The start of a command that pdsh's connection to a machine would be, never asking for a password."""
    more = os.environ.get(SSH_ARGUMENTS, "").split()  # as pdsh does, which knows no quotes
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, round(seconds))}", "-x", *more]
    return ["ssh", *options, *([] if port is None else ["-p", str(port)]), name]


def tell(host: Host, port: int | None, seconds: float, command: str, text: str) -> tuple[int, str, str]:
    """Run a command on a machine with ``text`` as its input; its exit code (255: ssh's own), output and errors."""
    try:
        done = subprocess.run(
            [*ssh(host.name, port, seconds), command],
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=2 * seconds,
        )
    except subprocess.TimeoutExpired:
        return 255, "", f"timed out: no answer within {2 * seconds:g} s"
    except OSError as error:
        return 255, "", f"ssh cannot be started: {error.strerror}"
    return done.returncode, done.stdout, done.stderr


def of_each(hosts: Sequence[Host], work: Callable[[Host], T]) -> list[T]:
    """``[work(host) for host in hosts]``, many at a time."""
    with ThreadPoolExecutor(min(MOST_AT_ONCE, max(1, len(hosts)))) as pool:
        return list(pool.map(work, hosts))


def ask(hosts: Sequence[Host], needs: Needs, port: int | None, seconds: float) -> list[Answer]:
    """What each machine says of itself.

    Args:
        hosts: asked all at once.
        needs: what they are asked for.
        port: of their ssh servers; None: ssh's own choice.
        seconds: that a connection may take; an answer twice that.
    """
    program = _PROGRAM.format(mark=_MARK, address=needs.master_address or "localhost", port=needs.master_port)
    script = _SCRIPT.format(
        mark=_MARK,
        folder=shlex.quote(str(needs.folder)),
        script=shlex.quote(needs.script or "."),
        python=shlex.quote(str(needs.python)),
        program=program,
    )

    def one(host: Host) -> Answer:
        code, out, err = tell(
            host, port, seconds, f"command -v source >/dev/null && echo {_MARK}source=yes; sh -s", script
        )
        lines = [line[len(_MARK) :] for line in out.splitlines() if line.startswith(_MARK)]
        said = dict(line.split("=", 1) for line in lines if "=" in line)
        return Answer(host, said, (err.strip() or f"exit code {code}") if not said.get("hostname") else "")

    return of_each(hosts, one)


def problems(answers: Sequence[Answer], needs: Needs, path: Path) -> list[Problem]:
    """What keeps a run from starting on these machines; the first of them is the one that the others look for."""
    found: list[Problem] = []
    for number, answer in enumerate(answers):
        where, name = f"{path}:{answer.host.line}", answer.host.name
        pairs = [_unreached(answer)] if answer.trouble else _lacking(answer, needs, first=number == 0)
        found += [Problem(where, name, wrong, remedy.format(name=name)) for wrong, remedy in pairs]
    return found


def _unreached(answer: Answer) -> tuple[str, str]:
    for words, wrong, remedy in _SAID:
        if words in answer.trouble:
            return f"{wrong} ({_last_line(answer.trouble)})", remedy
    return f"ssh cannot reach it: {_last_line(answer.trouble)}", "mend it until `ssh {name} hostname` answers by itself"


def _last_line(text: str) -> str:
    return re.sub(r"\s+", " ", text.strip().splitlines()[-1]) if text.strip() else "it said nothing"


def _lacking(answer: Answer, needs: Needs, first: bool) -> list[tuple[str, str]]:
    said = answer.said
    same = "the checkout and its environment must lie under the same path on every machine"
    if "folder" not in said:
        return [(f"it has no folder {needs.folder}", same)]
    found = []
    if "script" not in said:
        found.append((f"it has no {needs.script} in {needs.folder}", same))
    if "python" not in said:
        found.append((f"it has no {needs.python}", f"`make setup` in {needs.folder} there: {same}"))
    elif said["python"] != needs.version:
        found.append((f"Python {said['python']} there, {needs.version} here", "set up the same version everywhere"))
    if "source" not in said:
        found.append(("its login shell has no `source`, which DeepSpeed's launch needs", "`chsh -s /bin/bash` there"))
    if "python" in said and needs.master_address and "resolves" not in said:
        found.append(
            (f"it does not know {needs.master_address}", "give --master_addr an address that all of them know")
        )
    if "python" in said and first and "port" not in said:
        found.append((f"port {needs.master_port} is taken on it", "give another one: --master_port"))
    return found


def alike(answers: Sequence[Answer]) -> list[str]:
    """Pairs of names that are one machine, in words: its GPUs would be used twice."""
    seen: dict[str, str] = {}
    said = []
    for answer in answers:
        before = seen.setdefault(answer.machine, answer.host.name)
        if answer.machine and before != answer.host.name:
            said.append(f"{before} and {answer.host.name} are the same machine ({answer.hostname})")
    return said


def kill(
    hosts: Sequence[Host], port: int | None, seconds: float, processes: Mapping[str, Sequence[int]], of: str
) -> None:
    """SIGKILL for processes on other machines, as far as they can be reached.

    Args:
        hosts: machines that are told.
        port: of their ssh servers.
        seconds: that a connection may take.
        processes: numbers by the name that a machine has for itself; any machine of another name leaves them alone.
        of: the program they run: a process of this number that runs something else is left alone.
    """
    cases = "\n".join(
        f"{shlex.quote(name)}) for each in {' '.join(map(str, numbers))}; do "
        f"tr '\\0' ' ' 2>/dev/null < /proc/$each/cmdline | grep -qF -- {shlex.quote(of)} && kill -KILL $each; done;;"
        for name, numbers in processes.items()
    )
    script = f'case "$(uname -n)" in\n{cases}\nesac\n'
    of_each(hosts, lambda host: tell(host, port, seconds, "sh -s", script))
