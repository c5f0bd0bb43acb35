"""Keeping a run alive: start its command, watch what becomes of it, start it again from its newest checkpoint.

What a command's exit code says is not believed where the run's folder can be asked: DeepSpeed's runner ends with 0
when its child was killed. A run is done when its marker ``finished`` is new, and stays stopped when its marker
``stopped`` is. Exit codes count where they tell a reason not to try again.

``launchers/keep_alive.py`` is the command; everything it decides is here.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any

import psutil

from tape_ds import checkpoint, paths, run_folder
from tape_ds.distributed import ssh
from tape_ds.distributed.launch_command import TRAINING, split
from tape_ds.errors import EXIT_CODE, Problem, UserError, raise_if_any
from tape_ds.resilience import exit_code_file, run_lock
from tape_ds.resilience.stopping import StopRequest

GUARD_CODE = 3
"""A run's exit code when a guard has stopped it: started again as it is, it would stop again."""
WATCHDOG_CODE = 4
"""A run's exit code when it was stuck."""
LONGEST_BACKOFF = 300.0
LONGEST_KILL = 30.0
STARTING_SECONDS = 5.0
"""How long ranks that have not yet taken hold of the run's folder may take to stop: they have nothing to lose."""

_POLL_SECONDS = 0.2
_SCRIPTS = ("extend_llama.py", "finetune.py", "finetune_scrolls.py", "pretrain_c4.py", "train_arithmetic.py")
_RESUME = ("resume", "resume_from_checkpoint")
_ANEW = "start_anew"
_LOOKS = ("dry_run", "print_config")
_DECISIVE = (*_RESUME, _ANEW, "output_dir")


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How often, and how long."""

    restarts: int = 10
    """In a row without a newer committed checkpoint."""
    backoff: float = 5.0
    """Seconds before the first of them; twice as many before each further one, :data:`LONGEST_BACKOFF` at most."""
    grace: float = 60.0
    """Seconds that ranks have to commit and leave before they are killed."""

    def problems(self) -> list[Problem]:
        """Return what is wrong with them."""
        least = {"restarts": 0, "backoff": 0, "grace": 1}
        return [
            Problem(f"--{name}", getattr(self, name), "too small", f"give {limit} or more")
            for name, limit in least.items()
            if not getattr(self, name) >= limit
        ]


@dataclass(frozen=True)
class LaunchSpec:
    """A command that is kept alive."""

    first: list[str]
    """As it is started first."""
    again: list[str]
    """As it is started again: goes on from the newest checkpoint, whatever the first start was to do."""
    output: Path
    """The run's folder."""
    script: str
    """Name of the launcher's file that the ranks run."""
    hosts: Sequence[str] = ()
    """Machines that its ranks are started on by ssh."""
    ssh_port: int | None = None
    """Of their ssh servers; None: ssh's own choice."""


def prepare(command: Sequence[str]) -> LaunchSpec:
    """Return what a command line means that starts one of this project's launchers, however it starts it.

    Of its recipe only what decides where the run lies and what it goes on from is read; the launcher itself checks all
    of it, for the number of processes that it gets.

    Raises:
        UserError: there is not exactly one launcher in it, its recipe or hostfile cannot be read, or it would train
            nothing.
    """
    script, options, arguments = _launcher(command)
    name, fields = _read(PurePath(script).stem, arguments)
    for switch in _LOOKS:
        if fields.get(switch) is True:
            raise UserError(Problem(switch, True, "it would train nothing", "leave keep_alive.py away"))
    resume = [field for field in _RESUME if fields.get(field) is not None]
    anew = fields.get(_ANEW) is True
    first, again = [*command], [*command]
    if not resume and not anew:
        first += ["--resume", "auto"]
    for field in resume or _RESUME[:1]:
        again += [f"--{field}", "auto"]
    if anew:
        again += [f"--{_ANEW}", "false"]
    given = fields.get("output_dir")
    if given is None:
        given = f"runs/{name}"
    raise_if_any(list(paths.check("output_dir", str(given))))
    output = Path(str(given)).expanduser()
    hosts, port = _machines(options)
    return LaunchSpec(first, again, output, script, hosts, port)


def _launcher(command: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """Return the name of the launcher's file that a command runs, the words of whatever starts it, and its own."""
    found = [
        (PurePath(part).name, list(command[:place]), list(command[place + 1 :]))
        for place, part in enumerate(command)
        if PurePath(part).name in _SCRIPTS
    ]
    for place, (part, name) in enumerate(pairwise(command)):  # an environment may be called tape-ds as well
        if PurePath(part).name in ("tape-ds", "tape_ds") and name in TRAINING:
            found.append((f"{TRAINING[name]}.py", *split(command[place + 2 :])))
            break
    if len(found) != 1:
        wrong = "several launchers in it" if found else "no launcher in it"
        known = [f"tape-ds {name}" for name in TRAINING]
        known += [f"launchers/{name}" for name in _SCRIPTS]
        remedy = f"give the command that you would type without keep_alive.py, with one of {', '.join(known)}"
        raise UserError(Problem("command", " ".join(command), wrong, remedy))
    return found[0]


def _machines(options: Sequence[str]) -> tuple[list[str], int | None]:
    """Return the machines of a command's hostfile that it reaches by ssh, and the port; none where it starts one by
    one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-H", "--hostfile", type=Path)
    parser.add_argument("--ssh_port", type=int)
    parser.add_argument("--no_ssh", action="store_true")
    try:
        found, _ = parser.parse_known_args(list(options))
    except argparse.ArgumentError:  # DeepSpeed will say it
        return [], None
    if found.hostfile is None or found.no_ssh:
        return [], None
    return list(ssh.slots_of(found.hostfile)), found.ssh_port


def _read(launcher: str, arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """Return the name of the recipe that a launcher is given, and the values of decisive fields that are written.

    Raises:
        UserError: there is no such recipe, it is another launcher's, or it is no YAML.
    """
    from tape_ds.config import command_line, files, kinds, loading

    problems: list[Problem] = []
    flags = command_line.read(arguments, problems)
    name = (flags.pop("recipe", []) or [kinds.KINDS[launcher].DEFAULT])[-1]
    kind = kinds.taken(launcher, name)
    collected = files.read_recipe(name, kind.LAUNCHER, problems)
    files.require_launcher(name, collected, kind.LAUNCHER)
    raise_if_any(problems)
    switches = {field: flags.pop(field) for field in _LOOKS if field in flags}
    decisive = {field: texts for field, texts in flags.items() if field in _DECISIVE}
    collected = command_line.override(collected, decisive, loading.field_hints(kind), problems)
    raise_if_any(problems)
    fields: dict[str, Any] = {field: not texts or command_line.plain(texts[-1]) for field, texts in switches.items()}
    fields |= {field: given.value for field, given in collected.items() if field in _DECISIVE}
    return Path(name).stem, fields


class KeepAlive:
    """A run kept alive until it is done, a person stops it, or trying again is of no use.

    Args:
        kept: the command.
        patience: how often, and how long.
        request: that this process was asked to stop.
        say: shows a line to a person.
    """

    def __init__(self, kept: LaunchSpec, patience: Patience, request: StopRequest, say: Callable[[str], None]):
        self.kept = kept
        self.patience = patience
        self.request = request
        self.say = say

    def run(self) -> int:
        """Start the command as often as it takes; returns the exit code.

        0: the run is done, or was stopped with a committed checkpoint; 1: it was stopped without one; the command's own
        where it is started no more, 1 if that was 0 or a signal's.

        Raises:
            UserError: ranks of another job live in the run's folder, or the command cannot be started.
        """
        raise_if_any(run_lock.refuse(self.kept.output))
        command, in_vain = self.kept.first, 0
        while self.request.reason is None:
            attempt = _Attempt(command, self.kept)
            code = self._see_through(attempt)
            if code is not None:
                return code
            in_vain = 0 if attempt.has_progressed else in_vain + 1
            if in_vain > self.patience.restarts:
                self.say(f"{attempt.ended}; {self.patience.restarts} restarts brought no newer checkpoint: giving up")
                return max(attempt.code, 0) or 1
            pause = min(self.patience.backoff * 2 ** max(in_vain - 1, 0), LONGEST_BACKOFF)
            counted = f", restart {in_vain} of {self.patience.restarts} without a newer one" if in_vain else ""
            self.say(f"{attempt.ended}; starting it again in {pause:g} s {self._from()}{counted}")
            until = time.monotonic() + pause
            while self.request.reason is None and time.monotonic() < until:
                time.sleep(min(_POLL_SECONDS, pause))
            command = self.kept.again
        self.say(f"{self.request.reason} while nothing was running; {self._way_on()}")
        return 0

    def _see_through(self, attempt: "_Attempt") -> int | None:
        """Wait for an attempt's end; returns the exit code, None where it should be tried again."""
        try:
            while attempt.is_running and self.request.reason is None:
                time.sleep(_POLL_SECONDS)
            if attempt.is_running:
                return self._stop(attempt)
            left = attempt.settle(self.patience.grace)
        except KeyboardInterrupt:
            attempt.kill()
            self.say("interrupted twice: killed; what was not committed is lost")
            return 1
        if left:
            self.say(f"{left} processes outlived their launcher by {self.patience.grace:g} s and were killed")
        if attempt.is_finished:
            self.say("finished")
            return 0
        if (reason := attempt.stopped_by) is not None:
            return self._stays_stopped(reason)
        if attempt.code in (EXIT_CODE, GUARD_CODE):
            why = "something is to be mended" if attempt.code == EXIT_CODE else "a guard stopped it"
            self.say(f"exit code {attempt.code}, {why}: not started again (see above)")
            return attempt.code
        return None

    def _stop(self, attempt: "_Attempt") -> int:
        """Have the ranks stop, and them alone: a launcher would end them one after the other."""
        self.say(f"{self.request.reason}: asking the ranks to commit a checkpoint and stop")
        by_themselves = attempt.ask_to_stop(self.patience.grace)
        if attempt.is_finished:
            self.say("finished")
            return 0
        if not by_themselves:
            self.say(f"the ranks did not stop within {self.patience.grace:g} s and were killed; {self._way_on()}")
            return 1
        if (reason := attempt.stopped_by) is not None:
            return self._stays_stopped(reason)
        if attempt.had_begun and not attempt.has_progressed:
            self.say(f"the ranks stopped without a checkpoint; {self._way_on()}")
            return 1
        self.say(f"stopped; {self._way_on()}")
        return 0

    def _stays_stopped(self, reason: str) -> int:
        # the step at which the run was stopped must have its checkpoint; before the first there need be none
        step = (run_folder.stopped(self.kept.output) or {}).get("step")
        if step == 0 or any(step == checkpoint.step_of(each) for each in checkpoint.committed(self.kept.output)):
            self.say(f"the run was stopped ({reason}) and stays stopped; {self._way_on()}")
            return 0
        self.say(f"the run was stopped ({reason}), and its last checkpoint is not committed; {self._way_on()}")
        return 1

    def _way_on(self) -> str:
        return f"the same command goes on {self._from()}"

    def _from(self) -> str:
        """Return what the next start goes on from, in words."""
        found = checkpoint.committed(self.kept.output)
        return f"from {found[-1].name}" if found else "from the beginning: there is no checkpoint"


class _Attempt:
    """One start of the command, in a session of its own: signals from a terminal do not reach it, and all that it
    leaves behind can be found."""

    def __init__(self, command: list[str], kept: LaunchSpec):
        self.kept = kept
        self.had_begun = False
        """Whether ranks of it were seen that had taken hold of the run's folder."""
        self._before = {name: _stamp(kept.output / name) for name in (run_folder.FINISHED, run_folder.STOPPED)}
        self._checkpoints_before = _stamps(kept.output)
        self._was_clean = False
        """Whether nothing was left of it when the command ended."""
        folder = tempfile.TemporaryDirectory(prefix="keep_alive-")
        self._exit_code = folder, Path(folder.name) / "code"
        environment = {**os.environ, exit_code_file.FILE: str(self._exit_code[1])}
        try:
            self._process = subprocess.Popen(command, env=environment, start_new_session=True)
        except OSError as error:
            remedy = "give its path, or put its folder into PATH (with this project's environment: .venv/bin)"
            raise UserError(Problem("command", command[0], f"cannot be started: {error.strerror}", remedy)) from error

    @property
    def is_running(self) -> bool:
        """Whether the command has not ended, whatever became of the ranks."""
        return self._process.poll() is None

    @property
    def code(self) -> int:
        """The command's exit code, negative for a signal; it has ended, or nothing can end it. Where it is that of any
        failure (torchrun's is 1 whatever its ranks' were), rank 0 may know better."""
        code = self._process.poll()
        if code == 1 and (left := exit_code_file.read(self._exit_code[1])) is not None:
            return left
        return -signal.SIGKILL if code is None else code

    @property
    def ended(self) -> str:
        """How the command ended, in words."""
        if self.code < 0:
            how = f"was ended by {signal.Signals(-self.code).name}"
        else:
            how = f"ended with exit code {self.code}{', a rank was stuck' if self.code == WATCHDOG_CODE else ''}"
        return f"the command {how}, and the run is not finished"

    @property
    def is_finished(self) -> bool:
        """Whether the run is done. An earlier marker counts where the command left in order and left it there: it
        found nothing to do."""
        if run_folder.finished(self.kept.output) is None:
            return False
        return self._is_new(run_folder.FINISHED) or (self.code == 0 and self._was_clean)

    @property
    def stopped_by(self) -> str | None:
        """Why the ranks stopped, if they were asked to."""
        record = run_folder.stopped(self.kept.output)
        return str(record.get("reason")) if record is not None and self._is_new(run_folder.STOPPED) else None

    @property
    def has_progressed(self) -> bool:
        """Whether a checkpoint was committed since it was started, be it in the place of a damaged one."""
        return bool(_stamps(self.kept.output) - self._checkpoints_before)

    def ask_to_stop(self, grace: float) -> bool:
        """SIGTERM for every rank, also for those that come up meanwhile; returns whether they left by themselves within
        ``grace`` seconds, or had nothing to lose. Nothing is left of the attempt in either case."""
        asked: set[int] = set()
        began = time.monotonic()
        while (ranks := self._ranks()) or self.is_running:
            self.had_begun = self.had_begun or bool(ranks)
            for pid in {rank.pid for rank in ranks if rank.is_here and rank.pid} - asked:
                asked.add(pid)
                _send(pid, signal.SIGTERM)
            if time.monotonic() - began > (grace if self.had_begun else min(grace, STARTING_SECONDS)):
                self.kill()
                return not self.had_begun
            time.sleep(_POLL_SECONDS)
        self._was_clean = not self._left()
        self.kill()
        return True

    def settle(self, grace: float) -> int:
        """The command has ended: let ranks that outlived it commit and leave, for ``grace`` seconds, and kill what is
        left then; returns how many ranks that were."""
        self._was_clean = not self._left()
        until = time.monotonic() + grace
        while (ranks := self._ranks()) and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        self.kill()
        return len(ranks)

    def kill(self) -> None:
        """SIGKILL for everything that is left of it, until nothing is: on this machine, and on those of the hostfile as
        far as they can be reached. What waits for a disk that does not answer cannot be killed."""
        elsewhere: dict[str, list[int]] = {}
        for rank in run_lock.living(self.kept.output):
            if self.kept.hosts and not rank.is_here and rank.pid:
                elsewhere.setdefault(rank.host, []).append(rank.pid)
        if elsewhere:
            ssh.kill(self.kept.hosts, self.kept.ssh_port, elsewhere, self.kept.script)
        until = time.monotonic() + LONGEST_KILL
        while time.monotonic() < until:
            locking = run_lock.living(self.kept.output)
            here = self._left() | {rank.pid for rank in locking if rank.is_here and rank.pid}
            if not here:
                break
            for pid in here:
                _send(pid, signal.SIGKILL)
            self._process.poll()
            time.sleep(0.02)

    def _ranks(self) -> list[run_lock.Holder]:
        """Return those that have the run's folder locked, on any machine; on a file system without locks, processes of
        this attempt that have a file there."""
        living, own = run_lock.living(self.kept.output), self._left()
        return living + [each for each in run_lock.named(self.kept.output) if each.pid in own and each not in living]

    def _left(self) -> set[int]:
        """Living processes of its session; without zombies, which nothing can end."""
        found = set()
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
                if os.getsid(pid) == self._process.pid and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                    found.add(pid)
        return found

    def _is_new(self, marker: str) -> bool:
        stamp = _stamp(self.kept.output / marker)
        return stamp is not None and stamp != self._before[marker]


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended
        os.kill(pid, number)


def _stamps(output: Path) -> set[tuple[int, int] | None]:
    """Return what tells the committed checkpoints that are there now from any others."""
    return {_stamp(folder / checkpoint.MANIFEST) for folder in checkpoint.committed(output)}


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from the one that had its name before."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
