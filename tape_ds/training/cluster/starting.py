"""A ``deepspeed --hostfile`` command made ready: everything that could go wrong is looked at, then it starts as it is.

DeepSpeed starts the ranks; this looks at the hostfile and the machines first, gives them this environment, and mends
what the command would lose on its way through pdsh and the machines' shells.
"""

import contextlib
import os
import platform
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.training.cluster import forwarding, hostfile, reach
from tape_ds.training.cluster.hostfile import Host

RUNNER = "deepspeed.launcher.runner"
"""The module of the program ``deepspeed``."""
STARTED_HERE = ("localhost", "127.0.0.1")

_PROGRAMS = ("deepspeed", "ds", RUNNER)
_PDSH = "pdsh"
_NOT_CARRIED = re.compile(r"[\s\\\"'`$&;|<>()*?\[\]{}!#%~]")
"""What a folder's name loses on its way through DeepSpeed's command, which has no quotes around it."""
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@dataclass(frozen=True)
class Command:
    """A command line that runs DeepSpeed's launcher."""

    before: list[str]
    """What stands before its options: the program."""
    options: list[str]
    """Its options."""
    script: str
    arguments: list[str]
    """Of the script."""
    read: Namespace
    """Its options as it reads them itself."""

    @property
    def hostfile(self) -> Path:
        """The hostfile that it names."""
        return Path(self.read.hostfile)

    def line(self, more: Sequence[str] = (), through_shells: bool = False) -> list[str]:
        """The whole command with ``more`` options, which the user's own are stronger than.

        Args:
            more: options.
            through_shells: whether script and arguments go through pdsh and a shell on every machine.
        """
        words = [self.script, *self.arguments]
        if through_shells:  # DeepSpeed's own quotes are for the arguments alone
            words = [shlex.quote(self.script).replace("%", "%%"), *map(for_pdsh, self.arguments)]
        return [*self.before, *more, *self.options, *words]


def read(command: Sequence[str]) -> Command:
    """Take a command line apart, by DeepSpeed's own parser.

    Raises:
        UserError: it does not run DeepSpeed's launcher.
    """
    place = next((number for number, part in enumerate(command) if PurePath(part).name in _PROGRAMS), None)
    if place is None:
        remedy = "python launchers/on_hosts.py deepspeed --hostfile hosts launchers/extend_llama.py --recipe NAME"
        raise UserError(Problem("command", " ".join(command), "it does not run deepspeed", remedy))
    from deepspeed.launcher import runner

    rest = list(command[place + 1 :])
    found = runner.parse_args(rest)
    own = len(rest) - len(found.user_args) - 1
    return Command(list(command[: place + 1]), rest[:own], found.user_script, found.user_args, found)


def chosen(command: Command, hosts: Sequence[Host]) -> list[Host]:
    """The machines that the command takes of its hostfile (``--include``, ``--exclude``, ``--num_nodes`` ...).

    Raises:
        UserError: they cannot be had.
    """
    from deepspeed.launcher import runner

    asked = command.read
    filters = {"--include": asked.include, "--exclude": asked.exclude}
    given = {name: value for name, value in filters.items() if value}
    if given and (asked.num_nodes >= 0 or asked.num_gpus >= 0):
        raise UserError(Problem(*next(iter(given.items())), "not together with --num_nodes, --num_gpus", "keep one"))
    resources = {host.name: host.slots for host in hosts}
    try:
        active = runner.parse_inclusion_exclusion(resources, asked.include, asked.exclude)
    except ValueError as error:
        remedy = f"name machines of {command.hostfile}, and of their slots from 0 on: node1@node2:0,2"
        if any("@" in host.name for host in hosts):  # which DeepSpeed splits there
            remedy += "; users go into ~/.ssh/config then, and out of the hostfile"
        raise UserError(Problem(" ".join(given), " ".join(given.values()), str(error), remedy)) from error
    raise_if_any(list(_too_many(command, hosts)))
    active = runner.apply_num_nodes_and_gpus(active, asked.num_nodes, asked.num_gpus)
    if not active:
        raise UserError(Problem(" ".join(given), " ".join(given.values()), "no machine is left", "leave one"))
    return [Host(host.name, len(active[host.name]), host.line) for host in hosts if host.name in active]


def _too_many(command: Command, hosts: Sequence[Host]) -> list[Problem]:
    """DeepSpeed starts ranks for GPUs that are not there, and takes fewer machines than were asked for."""
    found, asked = [], command.read
    if asked.num_nodes > len(hosts):
        wrong = f"{command.hostfile} has {len(hosts)}"
        found.append(Problem("--num_nodes", asked.num_nodes, wrong, "ask for fewer, or add machines"))
    for host in hosts[: asked.num_nodes if asked.num_nodes > 0 else None]:
        if asked.num_gpus > host.slots:
            wrong = f"{host.name} has {host.slots} ({command.hostfile}:{host.line})"
            found.append(Problem("--num_gpus", asked.num_gpus, wrong, "ask for fewer, or mend its slots"))
    return found


def for_pdsh(word: str) -> str:
    """A word that arrives as it is behind DeepSpeed, pdsh and a shell.

    DeepSpeed puts quotes around words with spaces alone, and leaves what a shell does with the rest: ``{"a":1}`` would
    lose its quotes, ``$`` and ``*`` be replaced. pdsh replaces ``%h``, ``%n`` and ``%u``.
    """
    word = word.replace("%", "%%")
    if " " in word:
        return re.sub(r"([\\$`])", r"\\\1", word)
    return shlex.quote(word)


@dataclass(frozen=True)
class Ready:
    """A command that is ready to start."""

    line: list[str]
    scripts: forwarding.Scripts | None = None
    """What lies on the machines for it."""
    environment: Mapping[str, str] | None = None
    """Its variables; None: those of this process."""

    def run(self) -> int:
        """Start it, pass signals on, and clear up behind it; returns its exit code, 128 + N of a signal's.

        On other machines its input ends with this process, however that ends, and by that the launches there know.
        """
        try:
            return self._run()
        finally:
            if self.scripts is not None:
                self.scripts.remove()

    def _run(self) -> int:
        stdin = None if self.scripts is None else subprocess.PIPE
        try:
            running = subprocess.Popen(self.line, stdin=stdin, env=self.environment)
        except OSError as error:
            remedy = "give its path, or put its folder into PATH (with this project's environment: .venv/bin)"
            raise UserError(Problem("command", self.line[0], f"cannot be started: {error.strerror}", remedy)) from error

        def pass_on(number: int, frame: Any) -> None:
            with contextlib.suppress(ProcessLookupError):
                running.send_signal(signal.SIGTERM)  # the one that DeepSpeed's runner hands to the machines

        for number in _SIGNALS:
            signal.signal(number, pass_on)
        signal.signal(signal.SIGINT, lambda number, frame: None)  # a terminal's reaches the runner by itself
        code = running.wait()
        return code if code >= 0 else 128 - code


def prepare(command: Command, forward: Sequence[str], seconds: float, say: Callable[[str], None]) -> Ready:
    """Look at everything, and make it ready.

    Args:
        command: taken apart.
        forward: names of further variables that the machines get.
        seconds: that a machine may take to let ssh in.
        say: shows a line to a person.

    Raises:
        UserError: with everything that is in the way, machine by machine.
    """
    hosts, values = _looked_at(command, forward)
    if command.read.no_ssh:
        return Ready(command.line())
    if _is_here(command, hosts):
        return Ready(command.line(["--no_ssh_check", "--master_addr", STARTED_HERE[1]]))
    needs = reach.Needs(
        folder=Path.cwd(),
        script=None if command.read.module or command.read.no_python else command.script,
        python=Path(sys.executable),
        version=platform.python_version(),
        master_address=command.read.master_addr or None,
        master_port=command.read.master_port,
    )
    port = command.read.ssh_port
    answers = reach.ask(hosts, needs, port, seconds)
    raise_if_any(reach.problems(answers, needs, command.hostfile))
    raise_if_any(_addressless(command, answers[0]))
    for line in reach.alike(answers):
        say(f"{command.hostfile}: {line}; on a GPU, two ranks would share it")
    scripts = forwarding.Scripts(answers, port, seconds)
    scripts.place(values, Path(sys.executable).parent, command.read.venv_script)
    ranks = sum(host.slots for host in hosts)
    say(f"{len(hosts)} machines answer; {ranks} ranks; forwarded: {', '.join(values) or 'nothing'}")
    found = ["--master_addr", command.read.master_addr or str(answers[0].address)]
    # even for one machine: without it DeepSpeed would start the ranks here
    command.options.extend(["--venv_script", scripts.pattern])
    words = command.line([*found, "--no_ssh_check", "--force_multi"], through_shells=True)
    return Ready(words, scripts, _without_shown(os.environ, values))


def _looked_at(command: Command, forward: Sequence[str]) -> tuple[list[Host], dict[str, str]]:
    """The machines and the variables that they get, when nothing is wrong that can be seen from here.

    Raises:
        UserError: with all that is.
    """
    hosts: list[Host] = []
    values: dict[str, str] = {}
    found: list[Problem] = []
    try:
        hosts = chosen(command, hostfile.read(command.hostfile))
    except UserError as error:
        found += error.problems
    try:
        values = forwarding.chosen(os.environ, forward)
    except UserError as error:
        found += error.problems
    ports = _ports(command)
    found += ports
    if command.read.no_ssh:
        found += [] if ports else _alone(command, hosts)
    elif not hosts or not _is_here(command, hosts):
        found += [*_pdsh(command), *_not_carried()]
    raise_if_any(found)
    return hosts, values


def _is_here(command: Command, hosts: Sequence[Host]) -> bool:
    """Whether this machine is the only one, so that DeepSpeed needs no ssh."""
    here = len(hosts) == 1 and hosts[0].name in (*STARTED_HERE, socket.gethostname())
    return here and not command.read.force_multi


def _without_shown(environ: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """The environment without those of the forwarded ``values`` that DeepSpeed would put on a command line and log as
    well: MLflow's, with its token and its password."""
    from deepspeed.launcher import runner

    shown = tuple(prefix for prefix in runner.EXPORT_ENVS if prefix != "PYTHON")  # it adds this folder to PYTHONPATH
    return {name: value for name, value in environ.items() if not (name in values and name.startswith(shown))}


def _ports(command: Command) -> list[Problem]:
    numbers = {"--master_port": command.read.master_port, "--ssh_port": command.read.ssh_port}
    return [
        Problem(name, value, "no port", "give a number from 1 to 65535")
        for name, value in numbers.items()
        if value is not None and not 1 <= value < 2**16
    ]


def _pdsh(command: Command) -> list[Problem]:
    launcher = command.read.launcher.lower()
    if launcher != _PDSH:
        remedy = "leave --launcher away, or start deepspeed itself (docs/multi_node.md says what it forwards)"
        return [Problem("--launcher", launcher, "machines are looked at for pdsh alone", remedy)]
    if shutil.which(_PDSH) is None:
        remedy = "`apt install pdsh`, or start the command on every machine with --no_ssh (docs/multi_node.md)"
        return [Problem(_PDSH, None, "DeepSpeed reaches other machines by it, and it is not installed", remedy)]
    return []


def _not_carried() -> list[Problem]:
    """Folders that DeepSpeed's command line would lose a part of on the machines."""
    remedy = "use a path of letters, digits, . _ - and /, or start the command on every machine with --no_ssh"
    wrong = "DeepSpeed hands it to the machines' shells without quotes, which a blank or one of its signs would need"
    folders = {"folder": os.getcwd(), "python": sys.executable}
    return [Problem(name, path, wrong, remedy) for name, path in folders.items() if _NOT_CARRIED.search(path)]


def _alone(command: Command, hosts: Sequence[Host]) -> list[Problem]:
    """What is wrong with a start of this machine's ranks alone; of no ``hosts`` nothing is known."""
    asked, found = command.read, []
    if hosts and not 0 <= asked.node_rank < len(hosts):
        wrong = f"not the number of one of the {len(hosts)} machines"
        remedy = f"give the place of this machine in {command.hostfile}, from 0 on"
        found.append(Problem("--node_rank", asked.node_rank, wrong, remedy))
    if not asked.master_addr:
        first = hosts[0].name if hosts else "with the first machine's name"
        remedy = f"give --master_addr {first}, the same on every machine"
        found.append(Problem("--master_addr", "", "missing: with --no_ssh nobody can ask the first machine", remedy))
    elif not _resolves(asked.master_addr, asked.master_port):
        remedy = "give an address that all machines know"
        found.append(Problem("--master_addr", asked.master_addr, "no machine of this name is known here", remedy))
    if asked.node_rank == 0 and not _free(asked.master_port):
        found.append(Problem("--master_port", asked.master_port, "taken on this machine", "give another one"))
    return found


def _addressless(command: Command, first: reach.Answer) -> list[Problem]:
    if command.read.master_addr or first.address:
        return []
    return [Problem("--master_addr", "", f"{first.host.name} does not tell its address", "give it")]


def _resolves(address: str, port: int) -> bool:
    try:
        return bool(socket.getaddrinfo(address, port))
    except OSError:
        return False


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
