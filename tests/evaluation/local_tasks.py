"""Small local copies of MMLU and ARC: own questions in the hub's layout, read by the real code.

All questions are sums, so that an oracle can tell a right answer from the words alone. lm-eval's own YAML files are
used; of MMLU a subject for each of the four parts. All that is replaced is where ``datasets.load_dataset`` looks for a
name.
"""

import json
import random
import re
import shutil
from pathlib import Path

import lm_eval.tasks
import yaml
from lm_eval.api.model import LM

SUBJECTS = {
    "mmlu_philosophy": "philosophy",
    "mmlu_sociology": "sociology",
    "mmlu_anatomy": "anatomy",
    "mmlu_virology": "virology",
}
"""Humanities, social sciences, STEM, other: a task of the harness and its data's name."""
PARTS = ("humanities", "social_sciences", "stem", "other")
OURS = Path(__file__).resolve().parents[2] / "tape_ds" / "scoring" / "tasks"
THEIRS = Path(lm_eval.tasks.__file__).parent


def write_tasks(folder: Path) -> list[Path]:
    """Folders with the harness's YAML files that are needed: indexing all that it has takes many seconds."""
    mmlu = folder / "mmlu"
    mmlu.mkdir(parents=True)
    groups = [f"_mmlu_{part}.yaml" for part in PARTS]
    for name in ["_default_template_yaml", *groups, *(f"{task}.yaml" for task in SUBJECTS)]:
        shutil.copy(THEIRS / "mmlu" / "default" / name, mmlu)
    return [mmlu, THEIRS / "arc"]


def write_data(root: Path, items: int, seed: int = 0) -> None:
    """Every data set below ``root``, ``items`` questions a split."""
    draw = random.Random(seed)
    for subject in SUBJECTS.values():
        _write(
            root / "cais/mmlu", subject, {split: _mmlu(draw, items) for split in ("test", "dev")}
        )
    for config in ("ARC-Challenge", "ARC-Easy"):
        splits = {split: _arc(draw, max(items, 30)) for split in ("train", "validation", "test")}
        _write(root / "allenai/ai2_arc", config, splits)


def redirected(real, root: Path):
    """``datasets.load_dataset`` that finds the hub's names below ``root``."""

    def load_dataset(path, name=None, **kwargs):
        local = root / path
        kwargs["cache_dir"] = str(root / "cache")
        return (
            real(str(local), name or "default", **kwargs)
            if local.is_dir()
            else real(path, name, **kwargs)
        )

    return load_dataset


def is_true(context: str, continuation: str) -> bool:
    """Whether ``continuation`` makes the last sum of the text right."""
    options = re.findall(r"^([A-D])\. (\d+)$", context[context.rfind(" plus ") :], re.MULTILINE)
    if options:
        context, continuation = (
            context[: context.rfind("\nA. ")],
            dict(options)[continuation.strip()],
        )
    sums = re.findall(r"(\d+) plus (\d+)[^\d]+(\d+)", f"{context} {continuation}")
    right = int(sums[-1][0]) + int(sums[-1][1]) == int(sums[-1][2])
    return right == (continuation.strip() != "no")


class Oracle(LM):
    """A model whose reply to a prompt is ``answer(prompt)``, and whose log-likelihood of a continuation is
    ``judge(context, continuation)``; remembers what it ``read``, with the settings of the reply."""

    def __init__(self, answer=None, judge=None):
        super().__init__()
        self.answer, self.judge, self.read = answer, judge, []

    def generate_until(self, requests, disable_tqdm=False):
        self.read += [request.args for request in requests]
        return [self.answer(request.args[0]) for request in requests]

    def loglikelihood(self, requests, disable_tqdm=False):
        return [(self.judge(*request.args), False) for request in requests]

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        raise NotImplementedError


def _write(folder: Path, config: str | None, splits: dict) -> None:
    """A configuration of a data set as the hub has it: files, and a README that names them."""
    name = config or "default"
    (folder / name).mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / name / f"{split}.jsonl").write_text(lines)
    known = sorted(each for each in folder.iterdir() if each.is_dir())

    configs = [{"config_name": each.name, "data_files": _files(each)} for each in known]
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': configs})}---\n")


def _files(folder: Path) -> list[dict[str, str]]:
    return [
        {"split": file.stem, "path": f"{folder.name}/{file.name}"}
        for file in sorted(folder.glob("*.jsonl"))
    ]


def _sum(draw: random.Random) -> tuple[int, int, list[int], int]:
    """Two numbers, four possible sums, and which is right."""
    one, other = draw.randint(50, 400), draw.randint(50, 400)
    answers = draw.sample([one + other + off for off in (-30, -20, -10, 10, 20, 30)], 3)
    right = draw.randrange(4)
    return one, other, [*answers[:right], one + other, *answers[right:]], right


def _mmlu(draw, count):
    for _ in range(count):
        one, other, answers, right = _sum(draw)
        yield {
            "question": f"What is {one} plus {other}?",
            "choices": [str(each) for each in answers],
            "answer": right,
        }


def _arc(draw, count):
    for number in range(count):
        one, other, answers, right = _sum(draw)
        labels = "ABCD" if number % 10 else "1234"
        choices = {"text": [str(each) for each in answers], "label": list(labels)}
        question = f"What is {one} plus {other}?"
        yield {
            "id": str(number),
            "question": question,
            "choices": choices,
            "answerKey": labels[right],
        }
