"""What differs between machines is named, with the machine, the thing and both values."""

import ipaddress
import os
import threading

import psutil
import pytest
from torch import distributed

from tape_ds.distributed import comparison, rendezvous
from tape_ds.distributed.process_info import ProcessInfo
from tape_ds.distributed.rendezvous import Rendezvous
from tape_ds.errors import UserError
from tape_ds.training.identity import of_data

FACTS = {
    "code": {"tape_ds/f.py": "1"},
    "versions": {"python": "3.11.7", "torch": "2.13.0"},
    "variables": {},
    "device": {"device": "cuda"},
    "compiler": {"C compiler": "there"},
    "recipe": {"learning_rate": "0.1", "seed": "1"},
    "data": {"data text:x": "1"},
    "base": {"base model.safetensors": "2 GB, 1a", "tokenizer": "t"},
}


def records(**of_last):
    """A rank on each of three machines, the last with something else."""
    usual = {"host": "h", "boot": "b", "digest": "d", "commit": "aaa", "facts": FACTS}
    found = [usual | {"machine": f"node_rank {rank} (n{rank})"} for rank in range(3)]
    found[2] |= {"digest": "e", "commit": "bbb", "facts": FACTS | of_last}
    return found


@pytest.mark.parametrize(
    ("changes", "field", "value", "wrong"),
    [
        (
            {"versions": {"python": "3.11.7", "torch": "2.12.0"}},
            "torch",
            "2.12.0",
            "it is 2.13.0 on ",
        ),
        (
            {"versions": {"python": "3.11.7"}},
            "torch",
            "absent",
            "it is 2.13.0 on node_rank 0 (n0), node_rank 1 (n1)",
        ),
        ({"code": {"tape_ds/f.py": "2"}}, "code", "tape_ds/f.py", "(commit bbb, there aaa)"),
        (
            {"variables": {"TAPE_DS_ATTENTION": "sdpa"}},
            "TAPE_DS_ATTENTION",
            "sdpa",
            "it is absent on ",
        ),
        (
            {"recipe": {"learning_rate": "0.2", "seed": "1"}},
            "learning_rate",
            "0.2",
            "it is 0.1 on node_rank 0 (n0)",
        ),
    ],
)
def test_a_difference_is_named_with_machine_and_values(changes, field, value, wrong):
    (problem,) = comparison.differences(records(**changes))
    assert (problem.field, problem.value) == (
        f"{field} on node_rank 2 (n2)",
        value,
    ) and wrong in problem.wrong


def test_machines_of_one_name_are_refused():
    own = {"machine": "node_rank 1 (n)", "host": "n", "boot": "b", "digest": "d"}
    assert comparison.differences([own, own]) == []
    (problem,) = comparison.differences(
        [own, own | {"boot": "other", "machine": "node_rank 2 (n)"}]
    )
    assert problem.value == "n" and "node_rank 1 (n), node_rank 2 (n)" in problem.wrong


def test_every_file_of_the_package_counts_and_the_program(tmp_path, monkeypatch):
    (tmp_path / "launch.py").touch()
    monkeypatch.setattr("sys.argv", [str(tmp_path / "launch.py")])
    found = comparison.facts_of({}, {})["code"]
    assert {"tape_ds/errors.py", "tape_ds/attention/table.json", "launch.py"} <= set(found)
    assert (
        not any(name.endswith(".md") for name in found)
        and found["tape_ds/errors.py"] != found["launch.py"]
    )


def recipe(**fields):
    return {"seed": 1, "data_cache": "/cache", "hub_token": "hf_never_said"} | fields


def test_facts_hold_no_credential_and_nothing_of_the_machine():
    found = comparison.facts_of(recipe(), of_data({"https://me:secret@there": "1"}))
    assert (
        "secret" not in str(found)
        and "never_said" not in str(found)
        and "data_cache" not in found["recipe"]
    )


@pytest.fixture
def job(monkeypatch):
    """Runs the check on three ranks, each with its own recipe and fingerprints; what came of it, by rank."""
    monkeypatch.setattr(rendezvous, "POLL_SECONDS", 0.01)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    store, own = distributed.HashStore(), threading.local()
    monkeypatch.setattr(rendezvous, "current", lambda seconds: own.met)

    def run(of_rank):
        ended = {}

        def one(rank):
            own.met = Rendezvous(store, ProcessInfo(rank, 3, 0, 1, rank, 3, f"n{rank}"))
            try:
                ended[rank] = comparison.check(*of_rank(rank), timeout=300)
            except UserError as error:
                ended[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return ended

    return run


def test_alike_machines_continue(job):
    assert job(lambda rank: (recipe(data_cache=f"/disk{rank}"), {"data.text:x": "f"})) == {
        0: None,
        1: None,
        2: None,
    }


def test_machines_that_differ_are_named_on_all(job):
    """Weights at one path were compared on no machine: under ZeRO-3 each gave its part of another model."""

    def of_rank(rank):
        weights = "2 GB, 2b" if rank == 2 else "2 GB, 1a"
        return recipe(seed=5 if rank == 1 else 1), {
            "data.text:x": "f",
            "base.model.safetensors": weights,
        }

    ended = job(of_rank)
    assert len({str(error) for error in ended.values()}) == 1
    assert [(problem.field, problem.value) for problem in ended[2].problems] == [
        ("seed on node_rank 1 (n1)", "5"),
        ("base model.safetensors on node_rank 2 (n2)", "2 GB, 2b"),
    ]


@pytest.mark.parametrize("there", ["f", "g"])
def test_data_are_compared_when_all_ranks_know_them(monkeypatch, there):
    """Their files are read by all ranks of a machine together, who are together after the other subjects."""
    own = ProcessInfo(rank=1, world=2, local_rank=0, on_node=1, node=1, nodes=2, host="n1")
    monkeypatch.setattr(comparison.process_info, "current", lambda: own)

    class Ranks:
        def objects(self, record):
            facts = {"data": {"data text:x": there}}
            digest = record["digest"] if there == "f" else "another"
            other = {"machine": "node_rank 0 (n0)", "host": "n0", "digest": digest, "facts": facts}
            return [record | other, record]

    if there == "f":
        comparison.check_data({"data.text:x": "f"}, Ranks())
        return
    with pytest.raises(UserError) as caught:
        comparison.check_data({"data.text:x": "f"}, Ranks())
    (problem,) = caught.value.problems
    assert (problem.field, problem.value) == ("data text:x on node_rank 1 (n1)", "f")
    assert problem.wrong == "it is g on node_rank 0 (n0)"


@pytest.fixture
def outside(monkeypatch):
    """An address of this machine that others could reach, and its interface."""
    monkeypatch.setenv(comparison.GLOO, "")  # so that what a test sets is undone
    monkeypatch.delenv(comparison.GLOO)
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family.name == "AF_INET" and not ipaddress.ip_address(each.address).is_loopback:
                return each.address, name
    return pytest.skip("this machine has a loopback interface alone")


def test_the_way_to_another_machine_decides(outside):
    """Behind a name that is a loopback address here, as a Debian's own is, comes the first that is not."""
    address, name = outside
    assert comparison.own_address(address) == address
    comparison.use_interface_towards(
        ["127.0.1.1", "localhost", "", "no.such.name.invalid", address]
    )
    assert os.environ[comparison.GLOO] == name


def test_gloo_decides_between_machines_that_are_one_and_the_user_over_all(outside, monkeypatch):
    comparison.use_interface_towards(["127.0.0.1", "127.0.0.2", ""])
    assert comparison.GLOO not in os.environ
    monkeypatch.setenv(comparison.GLOO, "mine")
    comparison.use_interface_towards([outside[0]])
    assert os.environ[comparison.GLOO] == "mine"
