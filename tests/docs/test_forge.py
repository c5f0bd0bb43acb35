"""The files that a forge reads: workflows and the citation name what exists."""

import re
import shlex
import tomllib

import pytest
import yaml

from tests.docs import commands, pages

FORGE = pages.ROOT / ".github"
WORKFLOWS = sorted((FORGE / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((pages.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps(path):
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=pages.name)
def test_a_workflow_names_what_exists(path):
    lines = [line for step in steps(path) for line in step.get("run", "").splitlines()]
    for words in map(shlex.split, lines):
        if words[0] == "make":
            commands.check_make(words[1:])
    files = {name for line in lines for name in re.findall(r"requirements[\w-]*\.txt", line)}
    assert all((pages.ROOT / name).is_file() for name in files)
    assert all(("run" in step) != ("uses" in step) for step in steps(path))


def test_ci_does_what_lands_a_change():
    """The commands of ``.ci/run``, on every Python that the package names."""
    run = {
        line for line in (pages.ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines() if line[:5] == "make "
    }
    ours = [step.get("run", "").strip() for step in steps(FORGE / "workflows" / "ci.yml")]
    assert run and all(any(each.startswith(line) for each in ours) for line in run)
    named = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if "Python :: 3." in each]
    assert read(FORGE / "workflows" / "ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"] == named


def test_the_citation_names_the_papers():
    cited = read(pages.ROOT / "CITATION.cff")
    assert cited["version"] == PROJECT["version"] and cited["license"] == PROJECT["license"]
    text = (pages.ROOT / "CITATION.cff").read_text(encoding="utf-8")
    papers = set(re.findall(r"arxiv\.org/abs/([\d.]+\d)", (pages.ROOT / "README.md").read_text(encoding="utf-8")))
    assert len(papers) == 4 and all(paper in text for paper in papers)
    assert all(paper["authors"] and paper["year"] for paper in [cited["preferred-citation"], *cited["references"]])
