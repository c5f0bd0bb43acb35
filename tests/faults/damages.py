"""Checkpoints and inputs that are damaged, foreign or made to do harm: refused by name, and nothing else is touched.

Each attempt copies a run's folder with two committed checkpoints and damages the newer one, or what the run reads. To
be told to go on with exactly that one is refused, naming what is wrong and the older one; ``--resume auto`` passes it
over and comes to the uninterrupted run's end. Most attempts are jobs of one process (forks, see :mod:`.jobs`), every
tenth is a real launch of two.
"""

import json
import os
import pickle
import random
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tape_ds import checkpoint, run_folder
from tests.faults import jobs, runs
from tests.faults.campaign import Attempt, Campaign
from tests.faults.runs import SETTINGS, STEPS, Setting
from tests.processes import ROOT, Forked

SETTING, TWO = SETTINGS["packed"], SETTINGS["streamed"]
"""Of jobs of one process, and of two."""
Damage = Callable[[Path, Path, random.Random], str]
"""Given the newer checkpoint and the older one, damages the newer; returns a word that the refusal must hold."""

PARTS = {
    "optimizer": "global_step*/*optim_states.pt",
    "model": "global_step*/*model_states.pt",
    "weights": "model.safetensors",
    "state": "trainer_state.json",
    "random numbers": "rng_state*.pth",
    "schedule": "scheduler.pt",
    "sums": "rank_state_*.json",
    "manifest": checkpoint.MANIFEST,
}


def _part(folder: Path, kind: str) -> Path:
    """A file of a checkpoint; of the last rank, where each has one."""
    return sorted(folder.glob(PARTS[kind]))[-1]


def truncate(kind: str) -> Damage:
    """Cut one file short."""

    def damage(newer: Path, older: Path, draw: random.Random) -> str:
        file = _part(newer, kind)
        os.truncate(file, draw.randrange(file.stat().st_size))
        return file.name

    return damage


def flip(kind: str) -> Damage:
    """Change one bit of one file."""

    def damage(newer: Path, older: Path, draw: random.Random) -> str:
        file = _part(newer, kind)
        content = bytearray(file.read_bytes())
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        file.write_bytes(content)
        return file.name

    return damage


def delete(kind: str) -> Damage:
    """Remove one file."""

    def damage(newer: Path, older: Path, draw: random.Random) -> str:
        file = _part(newer, kind)
        file.unlink()
        return file.name

    return damage


def swap(kind: str) -> Damage:
    """Put the older checkpoint's file in the place of this one's."""

    def damage(newer: Path, older: Path, draw: random.Random) -> str:
        file = _part(newer, kind)
        shutil.copy(_part(older, kind), file)
        return file.name

    return damage


def foreign_file(newer: Path, older: Path, draw: random.Random) -> str:
    """Add a file."""
    name = draw.choice(("pytorch_model.bin", "optimizer.pt", "global_step0/x_optim_states.pt", "zero_to_fp32.py"))
    (newer / name).parent.mkdir(exist_ok=True)
    (newer / name).write_bytes(draw.randbytes(64))
    return name


def link(newer: Path, older: Path, draw: random.Random) -> str:
    """Put a link in a file's place, to the very same bytes elsewhere."""
    file = _part(newer, "optimizer")
    elsewhere = newer.parent / "elsewhere"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    return file.name


def edit_manifest(newer: Path, older: Path, draw: random.Random) -> str:
    """Change one field of the manifest by hand."""
    path = newer / checkpoint.MANIFEST
    content = json.loads(path.read_text())
    content[draw.choice(("step", "processes"))] += 1
    path.write_text(json.dumps(content))
    return checkpoint.MANIFEST


def manifest_outside(newer: Path, older: Path, draw: random.Random) -> str:
    """A manifest, sealed anew, that names a file outside of its folder."""
    manifest = checkpoint.read(newer)
    outside = newer.parent / "outside.txt"
    outside.write_text("not a checkpoint's")
    files = {**manifest.files, "../outside.txt": checkpoint.entry(outside)}
    _seal(newer, files)
    return "outside"


def foreign_manifest(newer: Path, older: Path, draw: random.Random) -> str:
    """The older checkpoint's manifest in this one's place."""
    shutil.copy(older / checkpoint.MANIFEST, newer / checkpoint.MANIFEST)
    return "global_step"


def no_checkpoint(newer: Path, older: Path, draw: random.Random) -> str:
    """A folder that is only named as one."""
    shutil.rmtree(newer)
    newer.mkdir()
    return checkpoint.MANIFEST


def other_shard(newer: Path, older: Path, draw: random.Random) -> str:
    """Engine files in a folder of another step's name."""
    inner = next(newer.glob("global_step*"))
    inner.rename(inner.with_name("global_step1"))
    return "global_step"


class _Malicious:
    """Unpickled, it makes a file."""

    def __init__(self, made: Path):
        self.made = made

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.made}",)


def malicious(kind: str, *, sealed: bool) -> Damage:
    """Put a pickle in a file's place that runs a command when it is loaded; ``sealed``: with a manifest that fits."""

    def damage(newer: Path, older: Path, draw: random.Random) -> str:
        import torch

        file = _part(newer, kind)
        torch.save({"state": _Malicious(newer.parent / "pwned")}, file)
        if draw.random() < 0.5:
            file.write_bytes(pickle.dumps(_Malicious(newer.parent / "pwned")))
        if sealed:
            manifest = checkpoint.read(newer)
            name = file.relative_to(newer).as_posix()
            _seal(newer, {**manifest.files, name: checkpoint.entry(file)})
        return file.name

    return damage


def _seal(folder: Path, files: dict[str, checkpoint.Entry]) -> None:
    """Give a checkpoint a manifest of these files, as whoever wants to do harm could."""
    manifest = checkpoint.read(folder)
    checkpoint.Manifest(**{**vars(manifest), "files": files}).write(folder)


@dataclass(frozen=True)
class Changed:
    """A run that is gone on with differently: refused, whichever checkpoint is asked for."""

    fields: dict[str, object]
    """Of the recipe."""
    named: str
    """What the refusal must name."""
    make: Callable[[Path, Path], dict[str, object]] | None = None
    """Given the workspace and this attempt's folder: more fields, with files that it makes."""


def _other_tokenizer(workspace: Path, folder: Path) -> dict[str, object]:
    """The tokenizer with one merge less."""
    made = folder / "tokenizer"
    shutil.copytree(runs.material(workspace) / "model", made)
    file = made / "tokenizer.json"
    content = json.loads(file.read_text())
    merges = content["model"]["merges"]
    merges[0], merges[1] = merges[1], merges[0]
    file.write_text(json.dumps(content))
    return {"tokenizer": made}


def _other_data(workspace: Path, folder: Path) -> dict[str, object]:
    """The data with one letter changed."""
    made = folder / "texts"
    made.mkdir()
    for file in runs.material(workspace).glob("train*.txt"):
        shutil.copy(file, made)
    last = made / "train7.txt"
    last.write_text(last.read_text().replace("return", "reTurn", 1))
    return {"train_data": f"text:{made}/train*.txt"}


ON_FILES: dict[str, Damage] = {
    **{f"truncate {kind}": truncate(kind) for kind in ("optimizer", "model", "weights", "state", "manifest")},
    **{f"flip a bit of {kind}": flip(kind) for kind in PARTS},
    **{f"delete {kind}": delete(kind) for kind in ("optimizer", "random numbers", "weights", "manifest")},
    **{f"swap {kind}": swap(kind) for kind in ("optimizer", "state", "schedule")},
    "a foreign file": foreign_file,
    "a link": link,
    "an edited manifest": edit_manifest,
    "a manifest that names a file outside": manifest_outside,
    "the manifest of another": foreign_manifest,
    "an empty folder": no_checkpoint,
    "engine files of another step": other_shard,
    **{f"a malicious {kind}": malicious(kind, sealed=False) for kind in ("optimizer", "random numbers")},
    **{
        f"a malicious {kind}, sealed": malicious(kind, sealed=True)
        for kind in ("optimizer", "model", "schedule", "random numbers")
    },
}
ON_INPUTS: dict[str, Changed] = {
    "another recipe": Changed({"hidden_size": 48, "seed": 7, "learning_rate": 0.5}, "seed"),
    "another tokenizer": Changed({}, "tokenizer", _other_tokenizer),
    "other data": Changed({}, "texts/train*.txt", _other_data),
    "no engine": Changed({"deepspeed": "null"}, "consolidate.py"),
}


def _execute(attempt: Attempt) -> None:
    kind = KINDS[attempt.number % len(KINDS)]
    attempt.what = kind
    if kind in OTHERS:
        OTHERS[kind](attempt)
    elif kind in ON_INPUTS:
        _changed_inputs(attempt, ON_INPUTS[kind])
    elif attempt.number % 10 == 5 and "sealed" not in kind:
        attempt.what += ", as a launch of two processes"
        _damaged(attempt, ON_FILES[kind], *_copy(attempt, two=True), _GoOn(attempt, TWO, launched=True))
    else:
        _damaged(attempt, ON_FILES[kind], *_copy(attempt), _GoOn(attempt))


@dataclass(frozen=True)
class Ended:
    """A job that has ended."""

    code: int
    printed: str


class _GoOn:
    """Goes on with an attempt's run, on one process, or on two by DeepSpeed's launcher."""

    def __init__(self, attempt: Attempt, setting: Setting = SETTING, *, launched: bool = False):
        self.attempt = attempt
        self.setting = setting
        self.launched = launched

    def __call__(self, output: Path, **changed: object) -> Ended:
        log = self.attempt.folder / f"{len(list(self.attempt.folder.glob('*.log')))}.log"
        given = (self.attempt.workspace, self.setting, output)
        if self.launched:
            with jobs.start(*given, log=log, **changed) as launch:
                return Ended(launch.wait(), launch.printed)
        with jobs.fork(*given, log=log, processes=1, **changed) as job:
            return Ended(job.wait(), job.printed)


def _original(workspace: Path, *, two: bool) -> Path:
    """The uninterrupted run."""
    if two:
        return jobs.reference(workspace, TWO)
    output = workspace / "references" / "alone"
    if run_folder.finished(output) is None:
        with jobs.fork(workspace, SETTING, output, processes=1, start_anew="true") as job:
            assert job.wait() == 0, job.printed[-4000:]
    return output


def _copy(attempt: Attempt, *, two: bool = False) -> tuple[Path, Path]:
    """A copy of the uninterrupted run as if it had not come to its end, and that run itself."""
    original = _original(attempt.workspace, two=two)
    output = attempt.folder / "run"
    shutil.copytree(original, output, ignore=shutil.ignore_patterns(run_folder.RANKS, run_folder.TRAINED, "results"))
    (output / run_folder.FINISHED).unlink()
    shutil.rmtree(output / f"checkpoint-{STEPS}")
    return output, original


def _damaged(attempt: Attempt, damage: Damage, output: Path, original: Path, go_on: _GoOn) -> None:
    older, newer = checkpoint.committed(output)[-2:]
    named = damage(newer, older, attempt.draw)
    before = _tree(output)
    refused = go_on(output, resume_from_checkpoint=newer)
    _assert_refused(refused, named)
    sealed = "sealed" in attempt.what  # whoever can seal one can seal them all: none is offered
    assert sealed or older.name in refused.printed, f"{older.name} is not offered\n{refused.printed[-3000:]}"
    assert _tree(output) == before, "the refusal changed the folder"
    attempt.seen.append(f"{newer.name} refused, naming {named}")
    done = go_on(output, resume="auto")
    if sealed and done.code != 0:  # its manifest is right: nothing tells before it is loaded
        _assert_refused(done, named)
        attempt.seen.append("refused by auto as well")
    else:
        assert done.code == 0, f"auto ended with {done.code}\n{done.printed[-4000:]}"
        assert f"not used: {newer.name}" in done.printed and f"resuming from {older}" in done.printed, done.printed[
            -3000:
        ]
        runs.assert_same(output, original)
        attempt.seen.append(f"auto went on from {older.name}, to the last digit")
    assert not list(attempt.folder.rglob("pwned")), "what a file held was carried out"


def _tree(output: Path) -> dict[str, str]:
    """All files of a run, locks aside."""
    return {name: digest for name, digest in runs.digests(output).items() if not name.startswith(run_folder.RANKS)}


def _assert_refused(ended: Ended, named: str) -> None:
    assert ended.code == 2, f"it ended with {ended.code}\n{ended.printed[-4000:]}"
    assert "Traceback" not in ended.printed, ended.printed[-4000:]
    assert named in ended.printed and "remedy:" in ended.printed, f"{named} is not named\n{ended.printed[-3000:]}"


def _changed_inputs(attempt: Attempt, changed: Changed) -> None:
    output, original = _copy(attempt)
    go_on = _GoOn(attempt)
    fields = {**changed.fields, **(changed.make(attempt.workspace, attempt.folder) if changed.make else {})}
    before = _tree(output)
    for asked in ({"resume": "auto"}, {"resume_from_checkpoint": checkpoint.committed(output)[-1]}):
        _assert_refused(go_on(output, **{**fields, **asked}), changed.named)
        assert _tree(output) == before, "the refusal changed the folder"
    attempt.seen.append(f"refused, naming {changed.named}")
    _assert_goes_on(attempt, go_on, output, original)
    assert not list(attempt.folder.rglob("pwned")) and not (attempt.workspace.parent / "pwned").exists()


def _assert_goes_on(attempt: Attempt, go_on: _GoOn, output: Path, original: Path) -> None:
    done = go_on(output, resume="auto")
    assert done.code == 0, f"as it was, it ended with {done.code}\n{done.printed[-4000:]}"
    runs.assert_same(output, original)
    attempt.seen.append("as it was, it goes on to the last digit")


def _other_ranks(attempt: Attempt) -> None:
    """No damage: one process goes on where two stopped. The campaign ``ranks`` looks at its losses."""
    output, original = _copy(attempt, two=True)
    done = _GoOn(attempt, TWO)(output, resume="auto")
    assert done.code == 0 and "shards are of 2 processes" in done.printed, done.printed[-4000:]
    mine, expected = ([(line[0], line[4]) for line in runs.metrics(folder)] for folder in (output, original))
    assert mine == expected, f"steps and tokens {mine} instead of {expected}"
    attempt.seen.append("gone on by one process")


def _empty_adapter(attempt: Attempt) -> None:
    """The weights of adapters, cut to nothing or to a few bytes."""
    original = jobs.reference(attempt.workspace, SETTINGS["pose"])
    folder = attempt.folder / run_folder.TRAINED
    shutil.copytree(original / run_folder.TRAINED, folder)
    file = folder / "adapter_model.safetensors"
    os.truncate(file, attempt.draw.choice((0, 4, 8, 100)))
    tool = ROOT / "tools" / "merge_adapter.py"
    with Forked(tool, [str(folder), str(attempt.folder / "out")], attempt.folder / "merge.log") as job:
        _assert_refused(Ended(job.wait(), job.printed), file.name)
    assert not (attempt.folder / "out").exists(), "something was written"
    attempt.seen.append(f"refused, naming {file.name}")


def _evil_archive(attempt: Attempt) -> None:
    """Data in an archive one of whose members would land outside of any folder."""
    path, output = attempt.folder / "evil.zip", attempt.folder / "run"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train.txt", "def f(value):\n    return value\n" * 200)
        archive.writestr("../../pwned", "x")
    data = f"text:zip://train.txt::file://{path}"
    with jobs.fork(attempt.workspace, SETTING, output, processes=1, train_data=data) as job:
        _assert_refused(Ended(job.wait(), job.printed), "../../pwned")
    assert not (attempt.folder.parent.parent / "pwned").exists() and not list(attempt.folder.rglob("pwned"))
    attempt.seen.append("refused, naming ../../pwned")


OTHERS: dict[str, Callable[[Attempt], None]] = {
    "another number of ranks": _other_ranks,
    "an empty adapter": _empty_adapter,
    "an archive that climbs out": _evil_archive,
}
KINDS = [*ON_FILES, *ON_INPUTS, *OTHERS]

CAMPAIGN = Campaign(
    "damages",
    count=40,
    daily=2,
    means="A file of a checkpoint is cut, flipped, deleted, swapped, linked, added or made to do harm, or recipe, "
    "tokenizer, data, engine or adapter are others: refused with exit code 2, named, the older checkpoint "
    "offered, every byte as before; --resume auto goes on from the older one to the last digit.",
    execute=_execute,
)
