"""Checkpoints and inputs that are damaged, foreign or made to do harm: refused by name, and nothing else is touched.

Each attempt copies a run's folder with two committed checkpoints and damages the newer one, or what the run reads.
Resuming from exactly that one is refused, naming what is wrong and the older one; ``--resume auto`` passes it over and
comes to the uninterrupted run's end. Most attempts are forked jobs of one process, every tenth is a real launch of
two.
"""

import json
import os
import pickle
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

from tape_ds import checkpoint, run_folder
from tests.faults import jobs, runs
from tests.faults.campaign import Attempt, Campaign
from tests.faults.runs import SETTINGS, STEPS
from tests.integration.conftest import Ended
from tests.processes import ROOT, Forked, Launch

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


def on_file(act: str, kind: str) -> Damage:
    """Cut one file short, change one bit of it, remove it, or put the older checkpoint's in its place."""

    def damage(newer: Path, older: Path, draw: random.Random) -> str:
        file = _part(newer, kind)
        content = bytearray(file.read_bytes())
        if act == "truncate":
            os.truncate(file, draw.randrange(len(content)))
        elif act == "flip":
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
            file.write_bytes(content)
        elif act == "delete":
            file.unlink()
        else:
            shutil.copy(_part(older, kind), file)
        return file.name

    return damage


def foreign_file(newer: Path, older: Path, draw: random.Random) -> str:
    """Add a file."""
    name = draw.choice(
        ("pytorch_model.bin", "optimizer.pt", "global_step0/x_optim_states.pt", "zero_to_fp32.py")
    )
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


def _other_tokenizer(workspace: Path, folder: Path) -> dict[str, object]:
    """The tokenizer with two merges swapped."""
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


ACTS = {
    "truncate": ("optimizer", "model", "weights", "state", "manifest"),
    "flip": tuple(PARTS),
    "delete": ("optimizer", "random numbers", "weights", "manifest"),
    "swap": ("optimizer", "state", "schedule"),
}
ON_FILES: dict[str, Damage] = {
    **{f"{act} {kind}": on_file(act, kind) for act, kinds in ACTS.items() for kind in kinds},
    "a foreign file": foreign_file,
    "a link": link,
    "an edited manifest": edit_manifest,
    "a manifest that names a file outside": manifest_outside,
    "the manifest of another": foreign_manifest,
    "an empty folder": no_checkpoint,
    "engine files of another step": other_shard,
    **{
        f"a malicious {kind}": malicious(kind, sealed=False)
        for kind in ("optimizer", "random numbers")
    },
    **{
        f"a malicious {kind}, sealed": malicious(kind, sealed=True)
        for kind in ("optimizer", "model", "schedule", "random numbers")
    },
}
ON_INPUTS: dict[str, tuple[str, Callable[[Path, Path], dict[str, object]]]] = {
    "another recipe": (
        "seed",
        lambda workspace, folder: {"hidden_size": 48, "seed": 7, "learning_rate": 0.5},
    ),
    "another tokenizer": ("tokenizer", _other_tokenizer),
    "other data": ("texts/train*.txt", _other_data),
    "no engine": ("tape-ds consolidate", lambda workspace, folder: {"deepspeed": "null"}),
}
"""What the refusal must name; given the workspace and this attempt's folder, fields by which a run is resumed, with
files that they need."""


def _execute(attempt: Attempt) -> None:
    kind = KINDS[attempt.number % len(KINDS)]
    attempt.what = kind
    if kind in OTHERS:
        OTHERS[kind](attempt)
    elif kind in ON_INPUTS:
        _changed_inputs(attempt, *ON_INPUTS[kind])
    else:
        two = attempt.number % 10 == 5 and "sealed" not in kind
        attempt.what += ", as a launch of two processes" if two else ""
        _damaged(attempt, ON_FILES[kind], two)


def _resume(attempt: Attempt, output: Path, two: bool = False, **changed: object) -> Ended:
    """Resume an attempt's run on one process, or on two by DeepSpeed's launcher."""
    log = attempt.folder / f"{len(list(attempt.folder.glob('*.log')))}.log"
    if two:
        job: Forked | Launch = jobs.start(attempt.workspace, TWO, output, log=log, **changed)
    else:
        job = jobs.fork(attempt.workspace, SETTING, output, log=log, processes=1, **changed)
    with job:
        return Ended(job.wait(), job.printed)


def _copy(attempt: Attempt, *, two: bool = False) -> tuple[Path, Path]:
    """A copy of the uninterrupted run as if it had not come to its end, and that run itself."""
    original = attempt.workspace / "references" / "alone"
    if two:
        original = jobs.reference(attempt.workspace, TWO)
    elif run_folder.read_marker(original / run_folder.FINISHED) is None:
        with jobs.fork(attempt.workspace, SETTING, original, processes=1, start_anew="true") as job:
            assert job.wait() == 0, job.printed[-4000:]
    output = attempt.folder / "run"
    shutil.copytree(
        original,
        output,
        ignore=shutil.ignore_patterns(run_folder.RANKS, run_folder.TRAINED, "results"),
    )
    (output / run_folder.FINISHED).unlink()
    shutil.rmtree(output / f"checkpoint-{STEPS}")
    return output, original


def _damaged(attempt: Attempt, damage: Damage, two: bool) -> None:
    output, original = _copy(attempt, two=two)
    older, newer = checkpoint.committed(output)[-2:]
    named = damage(newer, older, attempt.draw)
    before = _tree(output)
    refused = _resume(attempt, output, two, resume_from_checkpoint=newer)
    _assert_refused(refused, named)
    sealed = "sealed" in attempt.what  # where one can be sealed all can be: none is offered
    assert sealed or older.name in refused.output, (
        f"{older.name} is not offered\n{refused.output[-3000:]}"
    )
    assert _tree(output) == before, "the refusal changed the folder"
    attempt.seen.append(f"{newer.name} refused, naming {named}")
    done = _resume(attempt, output, two, resume="auto")
    if sealed and done.code != 0:  # its manifest is right: it is found out when it is loaded
        _assert_refused(done, named)
        attempt.seen.append("refused by auto as well")
    else:
        assert done.code == 0, f"auto ended with {done.code}\n{done.output[-4000:]}"
        assert (
            f"not used: {newer.name}" in done.output and f"resuming from {older}" in done.output
        ), done.output[-3000:]
        runs.assert_same(output, original)
        attempt.seen.append(f"auto resumed from {older.name}, to the last digit")
    assert not list(attempt.folder.rglob("pwned")), "what a file held was carried out"


def _tree(output: Path) -> dict[str, str]:
    """All files of a run, locks aside."""
    return {
        name: digest
        for name, digest in runs.digests(output).items()
        if not name.startswith(run_folder.RANKS)
    }


def _assert_refused(ended: Ended, named: str) -> None:
    assert ended.code == 2, f"it ended with {ended.code}\n{ended.output[-4000:]}"
    assert "Traceback" not in ended.output, ended.output[-4000:]
    assert named in ended.output and "remedy:" in ended.output, (
        f"{named} is not named\n{ended.output[-3000:]}"
    )


def _changed_inputs(
    attempt: Attempt, named: str, make: Callable[[Path, Path], dict[str, object]]
) -> None:
    """Refused, whichever checkpoint is asked for; as it was, the run is resumed to the last digit."""
    output, original = _copy(attempt)
    fields, before = make(attempt.workspace, attempt.folder), _tree(output)
    for asked in ({"resume": "auto"}, {"resume_from_checkpoint": checkpoint.committed(output)[-1]}):
        _assert_refused(_resume(attempt, output, **(fields | asked)), named)
        assert _tree(output) == before, "the refusal changed the folder"
    done = _resume(attempt, output, resume="auto")
    assert done.code == 0, f"as it was, it ended with {done.code}\n{done.output[-4000:]}"
    runs.assert_same(output, original)
    attempt.seen.append(f"refused, naming {named}; as it was, resumed to the last digit")


def _empty_adapter(attempt: Attempt) -> None:
    """The weights of adapters, cut to nothing or to a few bytes."""
    original = jobs.reference(attempt.workspace, SETTINGS["pose"])
    folder = attempt.folder / run_folder.TRAINED
    shutil.copytree(original / run_folder.TRAINED, folder)
    file = folder / "adapter_model.safetensors"
    os.truncate(file, attempt.draw.choice((0, 4, 8, 100)))
    tool = ROOT / "tools" / "merge_adapter.py"
    with Forked(
        tool, [str(folder), str(attempt.folder / "out")], attempt.folder / "merge.log"
    ) as job:
        _assert_refused(Ended(job.wait(), job.printed), file.name)
    assert not (attempt.folder / "out").exists(), "something was written"
    attempt.seen.append(f"refused, naming {file.name}")


def _evil_archive(attempt: Attempt) -> None:
    """Data in an archive one of whose members would be written outside of any folder: members are read in place."""
    path, output = attempt.folder / "evil.zip", attempt.folder / "run"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train.txt", "def f(value):\n    return value\n" * 200)
        archive.writestr("../../pwned", "x")
    data = f"text:zip://train.txt::file://{path}"
    with jobs.fork(attempt.workspace, SETTING, output, processes=1, train_data=data) as job:
        assert job.wait() == 0, job.printed[-4000:]
    assert not (attempt.folder.parent.parent / "pwned").exists() and not list(
        attempt.folder.rglob("pwned")
    )
    attempt.seen.append("one member was read, and nothing written outside")


OTHERS: dict[str, Callable[[Attempt], None]] = {
    "an empty adapter": _empty_adapter,
    "an archive that climbs out": _evil_archive,
}
KINDS = [*ON_FILES, *ON_INPUTS, *OTHERS]

CAMPAIGN = Campaign(
    "damages",
    count=40,
    daily=1,
    means="A file of a checkpoint is cut, flipped, deleted, swapped, linked, added or made to do harm, or recipe, "
    "tokenizer, data, engine or adapter are others: refused with exit code 2, named, the older checkpoint "
    "offered, every byte as before; --resume auto goes on from the older one to the last digit.",
    execute=_execute,
)
