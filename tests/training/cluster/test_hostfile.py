"""A hostfile is read strictly, and everything that is wrong in it is said with its line."""

import pytest

from tape_ds.errors import UserError
from tape_ds.training.cluster import hostfile


def test_machines_come_in_their_order_without_comments(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# rack 3\nnode2 slots=4   # the older one\n\n\tme@node1\tslots=8\r\n")
    found = hostfile.read(path)
    assert [(each.name, each.slots, each.line) for each in found] == [("node2", 4, 2), ("me@node1", 8, 4)]


@pytest.mark.parametrize(
    ("line", "wrong", "remedy"),
    [
        ("node1:4", "behind a colon", "node1 slots=4"),
        ("node1", "is missing", "node1 slots=N"),
        ("slots=8 node1", "name comes first", "node1 slots=8"),
        ("node1 slots = 8", "not of the form", "node1 slots=8"),
        ("node1 8", "not of the form", "node1 slots=8"),
        ("node1 gpus=8", "not of the form", "node1 slots=8"),
        ("node1 slots=eight", "not of the form", "slots=N"),
        ("node1 slots=-1", "not of the form", "slots=N"),
        ("node1 slots=8 max_slots=8", "'max_slots=8' is read by nobody", "node1 slots=8"),
        ("node1 slots=8x", "'x' is read by nobody", "node1 slots=8"),
        ("node1 slots=0", "without a GPU", "remove the line"),
        ("node1:22 slots=8", "no name of a machine", "--ssh_port"),
        ("node[1-4] slots=8", "no name of a machine", "the name"),
        ("node1,node2 slots=8", "no name of a machine", "the name"),
        ("-oProxyCommand=x slots=8", "no name of a machine", "the name"),
        ("\ufeffnode1 slots=8", "no name of a machine", "the name"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_remedy(line, wrong, remedy, tmp_path):
    path = tmp_path / "hosts"
    path.write_text(f"node9 slots=1\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        hostfile.read(path)
    (problem,) = caught.value.problems
    assert problem.field == f"{path}:2" and problem.value == line.strip()
    assert wrong in problem.wrong and remedy in problem.remedy


def test_a_byte_order_mark_is_said_by_its_name(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("\ufeff# all\nnode1 slots=8\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        hostfile.read(path)
    (problem,) = caught.value.problems
    assert problem.field == f"{path}:1" and "byte order mark" in problem.wrong


def test_all_mistakes_are_said_at_once(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("a slots=2\nb:4\na slots=2\nc\n")
    with pytest.raises(UserError) as caught:
        hostfile.read(path)
    assert [each.field.rpartition(":")[2] for each in caught.value.problems] == ["2", "3", "4"]
    assert "line 1 already" in caught.value.problems[1].wrong


@pytest.mark.parametrize(("text", "wrong"), [(None, "cannot be read"), ("", "no machine"), ("# x\n", "no machine")])
def test_a_file_without_machines_is_no_run_on_one(text, wrong, tmp_path):
    """DeepSpeed goes on without a word, with the GPUs of this machine alone."""
    path = tmp_path / "hosts"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=wrong):
        hostfile.read(path)


def test_deepspeed_reads_what_is_accepted_alike(tmp_path):
    from deepspeed.launcher import runner

    path = tmp_path / "hosts"
    path.write_text("# all\nnode-1.local slots=8 # new\nuser@10.0.0.2 slots=2\n")
    assert dict(runner.fetch_hostfile(str(path))) == {each.name: each.slots for each in hostfile.read(path)}
