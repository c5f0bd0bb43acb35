"""Machines of a hostfile by ssh, as pdsh reaches them, many at a time; what would ask for a password fails."""

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tape_ds.errors import Problem, UserError

SECONDS = 15
"""How long a machine may take to let ssh in; the command then as long again."""
MOST_AT_ONCE = 64
"""Connections at a time."""


def slots_of(hostfile: Path) -> dict[str, int]:
    """Slots by machine, as DeepSpeed reads them.

    Raises:
        UserError: it cannot, or there is no such file: DeepSpeed would train on this machine alone.
    """
    from deepspeed.launcher import runner

    slots, wrong = None, "there is no such file"
    try:
        slots = runner.fetch_hostfile(str(hostfile))
    except (OSError, ValueError) as error:
        wrong = str(error)
    if slots is None:
        raise UserError(Problem("--hostfile", str(hostfile), wrong, "write one machine a line, as: node1 slots=8"))
    return dict(slots)


def tell_each(commands: Mapping[str, tuple[str, str]], port: int | None) -> dict[str, str]:
    """Run a command on each machine, with a text as its input; returns what those said that failed, by name.

    Args:
        commands: command and text, by the machine's name.
        port: of their ssh servers; None: ssh's own choice.
    """
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={SECONDS}", "-x"]
    options += os.environ.get("PDSH_SSH_ARGS_APPEND", "").split()  # as pdsh does, which knows no quotes
    options += [] if port is None else ["-p", str(port)]

    def tell(host: str) -> str:
        command, text = commands[host]
        line = ["ssh", *options, host, command]
        try:
            done = subprocess.run(line, input=text, capture_output=True, text=True, timeout=2 * SECONDS)
        except (subprocess.TimeoutExpired, OSError) as error:
            return str(error)
        return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"

    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        outputs = list(pool.map(tell, commands))
    return {host: text for host, text in zip(commands, outputs, strict=True) if text}


def kill(hosts: Sequence[str], port: int | None, processes: Mapping[str, Sequence[int]], of: str) -> None:
    """SIGKILL for processes on other machines, as far as they can be reached.

    Args:
        hosts: the machines.
        port: of their ssh servers.
        processes: numbers by the name that a machine has for itself; any machine of another name leaves them alone.
        of: the program they run: a process of this number that runs something else is left alone.
    """
    cases = "\n".join(
        f"{shlex.quote(name)}) for each in {' '.join(map(str, numbers))}; do "
        f"tr '\\0' ' ' 2>/dev/null < /proc/$each/cmdline | grep -qF -- {shlex.quote(of)} && kill -KILL $each; done;;"
        for name, numbers in processes.items()
    )
    script = f'case "$(uname -n)" in\n{cases}\nesac\n'
    tell_each(dict.fromkeys(hosts, ("sh -s", script)), port)
