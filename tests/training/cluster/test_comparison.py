"""What differs between machines is named; what may differ is said and passed."""

import dataclasses

import pytest

from tape_ds.training.cluster.comparison import compare, compare_parts
from tape_ds.training.cluster.record import Record

TIB = 2**40


def records(count=3, **of_last):
    """A rank on each of so many machines, the last with something else."""
    found = [
        Record(
            rank=rank,
            machine=f"node_rank {rank} (n{rank})",
            host=f"n{rank}",
            boot=f"b{rank}",
            packages={"python": "3.11.7", "torch": "2.13.0"},
            variables={},
            digests={"code": "c", "recipe": "r", "data": "d"},
            gpus=("H100", "H100"),
            device="cuda",
            time=1000.0,
            free={"output_dir": TIB},
        )
        for rank in range(count)
    ]
    return [*found[:-1], dataclasses.replace(found[-1], **of_last)]


def test_machines_that_are_alike_are_no_finding():
    found = compare(records())
    assert (found.problems, found.warnings, found.unlike) == ([], [], [])


@pytest.mark.parametrize(
    ("changes", "field", "value", "wrong"),
    [
        (
            {"packages": {"python": "3.11.7", "torch": "2.12.0"}},
            "torch on node_rank 2 (n2)",
            "2.12.0",
            "it is 2.13.0 on ",
        ),
        (
            {"packages": {"python": "3.11.7"}},
            "torch on node_rank 2 (n2)",
            "absent",
            "it is 2.13.0 on node_rank 0 (n0), ",
        ),
        (
            {"variables": {"TAPE_DS_ATTENTION": "sdpa"}},
            "TAPE_DS_ATTENTION on node_rank 2 (n2)",
            "sdpa",
            "it is absent on ",
        ),
        ({"device": "cpu"}, "device on node_rank 2 (n2)", "cpu", "it is cuda on "),
        (
            {"sees_output": False},
            "output_dir on node_rank 2 (n2)",
            "not shared",
            "another folder than that of node_rank 0",
        ),
        ({"host": "n0"}, "hostname", "n0", "several machines call themselves so: node_rank 0 (n0), node_rank 2 (n2)"),
    ],
)
def test_what_must_not_differ_is_named_with_machine_and_values(changes, field, value, wrong):
    (problem,) = compare(records(**changes)).problems
    assert (problem.field, problem.value) == (field, value) and wrong in problem.wrong


@pytest.mark.parametrize("part", ["code", "recipe", "data"])
def test_lists_are_asked_for_where_digests_differ(part):
    digests = {"code": "c", "recipe": "r", "data": "d"} | {part: "other"}
    assert compare(records(digests=digests)).unlike == [part]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"time": 1042.0}, "the clock of node_rank 2 (n2) is 42 s ahead of the others"),
        ({"time": 990.0}, "the clock of node_rank 2 (n2) is 10 s behind the others"),
        ({"free": {"output_dir": 2**30}}, "output_dir on node_rank 2 (n2) has 1.00 GiB free, the others 1.00 TiB"),
        ({"gpus": ("A100", "A100")}, "node_rank 2 (n2) has 2 x A100, the others 2 x H100: the slowest sets the pace"),
    ],
)
def test_what_does_no_harm_is_said(changes, said):
    found = compare(records(**changes))
    assert (found.problems, found.warnings) == ([], [said])


@pytest.mark.parametrize("changes", [{"time": 1003.0}, {"free": {"output_dir": TIB // 3}}])
def test_what_is_common_is_not_even_said(changes):
    assert compare(records(**changes)).warnings == []


def test_of_two_machines_the_first_is_right():
    (problem,) = compare(records(2, device="cpu")).problems
    assert problem.field == "device on node_rank 1 (n1)"


@pytest.mark.parametrize("apart", [42.0, -42.0])
def test_of_two_clocks_the_first_is_right(apart):
    (said,) = compare(records(2, time=1000.0 + apart)).warnings
    assert said.startswith("the clock of node_rank 1 (n1) is 42 s")


def test_a_crowd_of_machines_is_cut_short():
    many = [dataclasses.replace(each, device="cpu") if each.rank > 20 else each for each in records(40)]
    (problem,) = compare(many).problems
    assert problem.field.endswith("and 13 more") and problem.wrong.endswith("and 15 more")


def test_fields_of_a_recipe_are_named_one_by_one():
    usual = {"recipe": {"learning_rate": "0.1", "seed": "1"}}
    problems = compare_parts(records(), [usual, usual, {"recipe": {"learning_rate": "0.2", "seed": "1"}}])
    (problem,) = problems
    assert (problem.field, problem.value) == ("learning_rate on node_rank 2 (n2)", "0.2")
    assert problem.wrong.startswith("it is 0.1 on node_rank 0 (n0)")


def test_files_of_the_code_are_named_together_with_the_commits():
    files = {f"tape_ds/f{number}.py": "1" for number in range(9)}
    usual = {"code": files, "commit": {"hash": "aaa"}}
    other = {"code": dict.fromkeys(files, "2"), "commit": {"hash": "bbb"}}
    (problem,) = compare_parts(records(), [usual, usual, other])
    assert problem.field == "code on node_rank 2 (n2)" and problem.value.endswith("tape_ds/f5.py and 3 more")
    assert "(commit bbb, there aaa)" in problem.wrong


def test_a_file_that_is_missing_counts_as_other():
    (problem,) = compare_parts(records(), [{"code": {"a.py": "1"}}, {"code": {"a.py": "1"}}, {"code": {}}])
    assert problem.value == "a.py"


def test_data_are_named_by_address():
    usual = {"data": {"text:x": "1"}}
    (problem,) = compare_parts(records(), [usual, usual, {"data": {"text:x": "2"}}])
    assert problem.field == "data text:x on node_rank 2 (n2)" and "a disk that all share" in problem.remedy
