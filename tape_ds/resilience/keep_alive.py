"""Keep a run alive: start its command, and restart it from its newest checkpoint until the run is finished.

The markers in the run's folder decide, since exit codes can be wrong: DeepSpeed's runner exits with 0 when its child
was killed. A run is finished if its marker ``finished`` is new, and stays stopped if its marker ``stopped`` is new.
Exit codes only give reasons not to restart.
"""

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

import psutil

from tape_ds import checkpoint, exit_codes, paths, run_folder
from tape_ds.distributed import hostfile
from tape_ds.distributed.launch_command import COMMANDS, TRAINING, split
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.exit_codes import ExitCode
from tape_ds.resilience import run_lock
from tape_ds.resilience.stopping import StopRequest

LONGEST_BACKOFF = 300.0
LONGEST_KILL = 30.0
STARTING_SECONDS = 5.0
"""How long ranks that have not yet locked the run's folder may take to stop: they have nothing to lose."""

_POLL_SECONDS = 0.2
_RESUME = ("resume", "resume_from_checkpoint")
_NO_TRAINING = ("dry_run", "print_config")


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Limits of keeping a run alive."""

    restarts: int = 10
    """In a row without a newer committed checkpoint."""
    backoff: float = 5.0
    """Seconds before the first of these; doubled before each further one, up to :data:`LONGEST_BACKOFF`."""
    grace: float = 60.0
    """Seconds that ranks have to commit and exit before they are killed."""

    def problems(self) -> list[Problem]:
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
    """Command of the first start."""
    again: list[str]
    """Command of every restart: resumes from the newest checkpoint, however the first start began."""
    output: Path
    """The run's folder."""
    first_decides: bool = False
    """Whether the first start names what it begins from; it is repeated until a run has begun, since the newest
    checkpoint may until then be of another."""


def prepare(command: Sequence[str]) -> LaunchSpec:
    """Read a command line that starts one of this project's launchers, in whatever way.

    Only the recipe's fields that decide where the run is and what it resumes are read; the launcher itself checks all
    of them, for its number of processes.

    Raises:
        UserError: there is not exactly one launcher in it, its recipe cannot be read, or it would train nothing.
    """
    # `--help` does without
    from tape_ds.config import command_line, files, kinds

    launchers = []
    for place, word in enumerate(command):
        path = PurePath(word)
        if path.suffix == ".py" and path.stem in COMMANDS:
            launchers.append((path.stem, list(command[place + 1 :])))
    # a folder or environment may have the name as well
    for place, (word, following) in enumerate(pairwise(command)):
        if PurePath(word).name in ("tape-ds", "tape_ds") and following in TRAINING:
            launchers.append((TRAINING[following], split(command[place + 2 :])[1]))
            break
    if len(launchers) != 1:
        wrong = "several launchers in it" if launchers else "no launcher in it"
        known = [f"tape-ds {name}" for name in TRAINING]
        remedy = f"give the command that you would type without keep_alive, with one of {', '.join(known)}"
        raise UserError(Problem("command", " ".join(command), wrong, remedy))

    launcher, arguments = launchers[0]
    problems = hostfile.check(command)
    # options of DeepSpeed's runner too, which decide nothing here
    flags = command_line.read(arguments, problems)
    name = (flags.pop("recipe", []) or [kinds.KINDS[launcher].DEFAULT])[-1]
    kind = kinds.taken(launcher, name)
    collected = files.read_recipe(name, kind.LAUNCHER, problems)
    files.require_launcher(name, collected, kind.LAUNCHER)
    raise_if_any(problems)
    for switch in _NO_TRAINING:
        texts = flags.get(switch, ["false"])
        if not texts or command_line.plain(texts[-1]) is True:
            problems.append(
                Problem(switch, True, "it would train nothing", "start it without keep_alive")
            )
    known_fields = kind.fields() | {"resume": kind.fields()["resume_from_checkpoint"]}
    names = (*_RESUME, "start_anew", "no_start_anew", "output_dir")
    decisive = {name: flags[name] for name in flags if name in names}
    collected = command_line.override(collected, decisive, known_fields, problems)
    raise_if_any(problems)
    fields = {field: given.value for field, given in collected.items()}

    # the first start does what was typed; every later one continues what that one began
    resume = [field for field in _RESUME if fields.get(field) is not None]
    starts_anew = fields.get("start_anew") is True
    first = [*command]
    again = [*command]
    if not resume and not starts_anew:
        first += ["--resume", "auto"]
    for field in resume or _RESUME[:1]:
        again += [f"--{field}", "auto"]
    if starts_anew:
        again += ["--start_anew", "false"]
    output = fields.get("output_dir")
    output = f"runs/{Path(name).stem}" if output is None else str(output)
    raise_if_any(list(paths.check("output_dir", output)))
    first_decides = starts_anew or any(fields[field] != "auto" for field in resume)
    return LaunchSpec(first, again, Path(output).expanduser(), first_decides)


@dataclass
class KeepAlive:
    """Restarts a run until it is finished, a person stops it, or another attempt is of no use."""

    spec: LaunchSpec
    patience: Patience
    request: StopRequest
    """Whether this process was asked to stop."""
    say: Callable[[str], None]
    """Prints a line."""

    def run(self) -> int:
        """Start the command as often as necessary; return the exit code.

        0: the run is finished, or was stopped with a committed checkpoint; 1: it was stopped without one; otherwise the
        command's code, or 1 if that was 0 or a signal's.

        Raises:
            UserError: another job uses the run's folder, or the command cannot be started.
        """
        raise_if_any(run_lock.refuse(self.spec.output))
        command = self.spec.first
        in_vain = 0
        limit = self.patience.restarts
        while self.request.reason is None:
            attempt = _Attempt(command, self.spec.output)
            code = self._follow(attempt)
            if code is not None:
                return code
            how = f"ended with exit code {attempt.code}"
            if attempt.code < 0:
                how = f"was ended by {signal.Signals(-attempt.code).name}"
            elif attempt.code == ExitCode.WATCHDOG:
                how += ", a rank was stuck"
            ended = f"the command {how}, and the run is not finished"
            # a run that fails once a day for a month is not given up
            in_vain = 0 if attempt.has_progressed() else in_vain + 1
            if in_vain > limit:
                self.say(f"{ended}; {limit} restarts brought no newer checkpoint: giving up")
                return max(attempt.code, 0) or ExitCode.FAILURE
            pause = min(self.patience.backoff * 2 ** max(in_vain - 1, 0), LONGEST_BACKOFF)
            counted = ""
            if in_vain:
                counted = f", restart {in_vain} of {limit} without a newer one"
            self.say(f"{ended}; restarting in {pause:g} s {self._from()}{counted}")

            # Also wait for ranks on other machines: they cannot be killed from here, and their locks would have the
            # restart refused. They exit when their connections break, or when their watchdog ends them.
            until = time.monotonic() + pause
            announced = False
            while self.request.reason is None:
                living = None
                if time.monotonic() >= until:
                    living = run_lock.living(self.spec.output)
                if living == []:
                    break
                if living and not announced:
                    self.say(f"waiting for {'; '.join(map(str, living))}")
                    announced = True
                time.sleep(min(_POLL_SECONDS, pause or _POLL_SECONDS))
            if not self.spec.first_decides or attempt.has_taken_folder():
                command = self.spec.again
        self.say(
            f"{self.request.reason} while nothing was running; the same command continues {self._from()}"
        )
        return ExitCode.OK

    def _follow(self, attempt: "_Attempt") -> int | None:
        """Wait for an attempt's end, or end it on request; return the exit code, or None if another should follow."""
        grace = self.patience.grace
        say = self.say
        try:
            while attempt.is_running() and self.request.reason is None:
                time.sleep(_POLL_SECONDS)
            asked = attempt.is_running()
            if asked:
                say(f"{self.request.reason}: asking the ranks to commit a checkpoint and stop")
            in_time = attempt.end(grace, asked)
        except KeyboardInterrupt:
            attempt.kill()
            say("interrupted twice: killed; what was not committed is lost")
            return ExitCode.FAILURE
        if not in_time and not asked:
            say(f"ranks outlived their launcher by {grace:g} s; those on this machine were killed")
        if attempt.is_finished():
            say("finished")
            return ExitCode.OK

        resumes = f"the same command continues {self._from()}"
        if asked and not in_time:
            say(f"the ranks did not stop within {grace:g} s and were killed; {resumes}")
            return ExitCode.FAILURE
        stopped = run_folder.read_marker(self.spec.output / run_folder.STOPPED)
        if stopped is not None and attempt.is_new(run_folder.STOPPED):
            # the step at which the run was stopped must have its checkpoint; before the first there need be none
            step = stopped.get("step")
            reason = stopped.get("reason")
            steps = [0, *map(checkpoint.step_of, checkpoint.committed(self.spec.output))]
            if step in steps:
                say(f"the run was stopped ({reason}) and stays stopped; {resumes}")
                return ExitCode.OK
            say(
                f"the run was stopped ({reason}), and its last checkpoint is not committed; {resumes}"
            )
            return ExitCode.FAILURE
        if asked and attempt.had_begun and not attempt.has_progressed():
            say(f"the ranks stopped without a checkpoint; {resumes}")
            return ExitCode.FAILURE
        if asked:
            say(f"stopped; {resumes}")
            return ExitCode.OK
        if attempt.code in (ExitCode.USER_ERROR, ExitCode.GUARD):
            why = "it would fail again"
            if attempt.code == ExitCode.GUARD:
                why = "a guard stopped the run"
            say(f"exit code {attempt.code}, {why}: not restarted (see above)")
            return attempt.code
        return None

    def _from(self) -> str:
        newest = checkpoint.committed(self.spec.output)[-1:]
        if newest:
            return f"from {newest[0].name}"
        return "from the beginning: there is no checkpoint"


class _Attempt:
    """One start of the command, in a session for itself: signals from a terminal do not reach it, and every process
    that it leaves can be found."""

    def __init__(self, command: list[str], output: Path):
        self.output = output
        self.had_begun = False
        """Whether some of its ranks have locked the run's folder."""
        names = (run_folder.BEGUN, run_folder.FINISHED, run_folder.STOPPED)
        self._markers = {name: _stamp(output / name) for name in names}
        self._checkpoints = _checkpoint_stamps(output)
        self._folder = tempfile.TemporaryDirectory(prefix="keep_alive-")
        self._code_file = Path(self._folder.name) / "code"
        environment = {**os.environ, exit_codes.FILE: str(self._code_file)}
        try:
            self._process = subprocess.Popen(command, env=environment, start_new_session=True)
        except OSError as error:
            remedy = "give its path, or put its folder into PATH (with this project's environment: .venv/bin)"
            raise UserError(
                Problem("command", command[0], f"cannot be started: {error.strerror}", remedy)
            ) from error

    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def code(self) -> int:
        """The command's exit code, negative for a signal; rank 0's, if it left one and the command only reports a
        failure, as torchrun always does."""
        code = self._process.poll()
        if code == ExitCode.FAILURE and (left := exit_codes.read(self._code_file)) is not None:
            return left
        # None: it waits for a disk, and cannot be killed
        if code is None:
            return -signal.SIGKILL
        return code

    def is_new(self, marker: str) -> bool:
        return _stamp(self.output / marker) not in (None, self._markers[marker])

    def is_finished(self) -> bool:
        """Return whether the run is finished. An older marker counts if the command kept it and exited with 0: there
        was nothing to do."""
        if run_folder.read_marker(self.output / run_folder.FINISHED) is None:
            return False
        return self.is_new(run_folder.FINISHED) or self.code == ExitCode.OK

    def has_taken_folder(self) -> bool:
        """Return whether its run has begun in the folder, after it had chosen what to begin from."""
        return self.is_new(run_folder.BEGUN)

    def has_progressed(self) -> bool:
        """Return whether a checkpoint was committed since the start, if only in place of a damaged one."""
        return bool(_checkpoint_stamps(self.output) - self._checkpoints)

    def end(self, grace: float, ask: bool) -> bool:
        """Wait ``grace`` seconds for the ranks to commit and exit, then kill what is left on this machine.

        With ``ask``, send SIGTERM to every rank, including those that start meanwhile, and not to their launcher, which
        would end them one after the other. Returns whether they exited in time, or had nothing to lose.
        """
        asked: set[int] = set()
        began = time.monotonic()
        in_time = True
        while (ranks := self._ranks()) or self.is_running():
            self.had_begun = self.had_begun or bool(ranks)
            if ask:
                for pid in _pids_here(ranks) - asked:
                    asked.add(pid)
                    _send(pid, signal.SIGTERM)
            allowed = grace if self.had_begun else min(grace, STARTING_SECONDS)
            if time.monotonic() - began > allowed:
                in_time = not self.had_begun
                break
            time.sleep(_POLL_SECONDS)
        self.kill()
        return in_time

    def kill(self) -> None:
        """Send SIGKILL to everything that is left of it on this machine, until nothing is. A process that waits for a
        disk cannot be killed."""
        until = time.monotonic() + LONGEST_KILL
        while time.monotonic() < until:
            # ranks that left the session, such as those of a launcher that makes sessions itself, have the lock
            pids = self._processes() | _pids_here(self._ranks())
            if not pids:
                break
            for pid in pids:
                _send(pid, signal.SIGKILL)
            self._process.poll()
            time.sleep(0.02)

    def _ranks(self) -> list[run_lock.Holder]:
        """Return the ranks that have the run's folder locked, on any machine; on a file system without locks, processes
        of this attempt that have a file there."""
        own = self._processes()
        ranks = []
        for rank in run_lock.named(self.output):
            if rank.is_locked or (rank.is_here and rank.pid in own):
                ranks.append(rank)
        return ranks

    def _processes(self) -> set[int]:
        """Return the living processes of its session, without zombies."""
        pids = set()
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
                if (
                    os.getsid(pid) == self._process.pid
                    and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
                ):
                    pids.add(pid)
        return pids


def _checkpoint_stamps(output: Path) -> set[tuple[int, int] | None]:
    return {_stamp(folder / checkpoint.MANIFEST) for folder in checkpoint.committed(output)}


def _pids_here(ranks: Sequence[run_lock.Holder]) -> set[int]:
    return {rank.pid for rank in ranks if rank.is_here and rank.pid}


def _send(pid: int, number: int) -> None:
    # it has just ended
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return inode and modification time: a file that was written again differs."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
