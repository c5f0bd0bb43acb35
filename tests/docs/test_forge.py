"""Workflows name targets and files that exist, and land a change as `.ci/run` does."""

import re
import shlex

import pytest
import yaml

from tests.docs import commands, pages

WORKFLOWS = sorted((pages.ROOT / ".github" / "workflows").glob("*.yml"))


def lines_of(path):
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
    return [
        line for job in jobs for step in job["steps"] for line in step.get("run", "").splitlines()
    ]


@pytest.mark.parametrize("path", WORKFLOWS, ids=pages.name)
def test_a_workflow_names_what_exists(path):
    lines = lines_of(path)
    for words in map(shlex.split, lines):
        if words[0] == "make":
            commands.check_make(words[1:])
    files = {name for line in lines for name in re.findall(r"requirements[\w-]*\.txt", line)}
    assert [name for name in files if not (pages.ROOT / name).is_file()] == []


def test_ci_runs_the_commands_that_land_a_change():
    landing = (pages.ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    ours = lines_of(pages.ROOT / ".github" / "workflows" / "ci.yml")
    wanted = [line for line in landing if line.startswith("make ")]
    assert (
        wanted
        and [line for line in wanted if not any(each.startswith(line) for each in ours)] == []
    )
