"""Ranks on several machines wait for each other, and end together: threads with one store stand for them."""

import json
import socket
import threading

import pytest
from torch import distributed

from tape_ds import exit_codes
from tape_ds.distributed import rendezvous
from tape_ds.distributed.process_info import ProcessInfo
from tape_ds.distributed.rendezvous import NotTogether, Rendezvous
from tape_ds.errors import Problem, UserError, command
from tape_ds.exit_codes import ExitCode

WRONG = Problem("window", 3, "too small", "give 4")
LONG = 300
"""Seconds that no test waits: what it waits for happens."""


def place(rank, world=4):
    """Two ranks a machine."""
    return ProcessInfo(rank, world, rank % 2, 2, rank // 2, world // 2, f"host{rank // 2}")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(rendezvous, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(rendezvous, "LINGER_SECONDS", LONG)
    monkeypatch.setattr(rendezvous, "LEAVE_SECONDS", 1.0)
    monkeypatch.setattr(rendezvous, "_stop_reason", None)
    monkeypatch.setattr(rendezvous, "_meeting", None)


class Job:
    """Ranks that do something each; what came of it, by rank."""

    def __init__(self, world=4):
        self.store, self.world = distributed.HashStore(), world
        self.ended: dict[int, object] = {}

    def met(self, rank):
        return Rendezvous(self.store, place(rank, self.world))

    def run(self, work, ranks):
        def one(rank):
            met = self.met(rank)
            try:
                self.ended[rank] = work(met, rank)
            except UserError as error:
                self.ended[rank] = met.end(error)

        threads = [threading.Thread(target=one, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.ended


def wait(met, rank):
    met.barrier("", LONG)


def fails(*failing, error=None):
    """These ranks cannot start, the others wait."""

    def work(met, rank):
        if rank in failing:
            raise error or UserError(WRONG)
        met.barrier("", LONG)

    return work


def test_all_ranks_continue_with_the_texts_of_all():
    def work(met, rank):
        return met.barrier(f"r{rank}", LONG) + met.barrier(f"s{rank}", LONG)

    texts = ["r0", "r1", "r2", "r3", "s0", "s1", "s2", "s3"]
    assert Job().run(work, range(4)) == dict.fromkeys(range(4), texts)


def test_missing_ranks_are_named_by_machine(monkeypatch, capsys):
    monkeypatch.setattr(rendezvous, "NOTICE_SECONDS", 0.0)
    job = Job(6)
    for rank in (1, 3):
        job.store.set(f"1/{rank}", "")
    job.store.add("1", 2)
    error = job.run(lambda met, rank: met.barrier("", 0.3), [0])[0]
    missing = "node_rank 1, rank 2; node_rank 2, rank 4, 5"
    assert isinstance(error, NotTogether) and f"{missing} did not come within 0.3 s" in str(error)
    assert f"waiting for {missing} since 0 s" in capsys.readouterr().out


def test_what_one_machine_cannot_do_ends_all_and_rank_0_says_it():
    ended = Job().run(fails(3), range(4))
    assert {error.exit_code for error in ended.values()} == {ExitCode.USER_ERROR}
    (problem,) = ended[0].problems
    assert (problem.field, problem.wrong) == ("window on node_rank 1 (host1)", "too small")
    assert not any(error.on_one_rank for error in ended.values())


def test_a_mistake_of_another_machine_is_no_reason_to_start_again(monkeypatch, tmp_path):
    """torchrun loses the exit code; whoever keeps the run alive reads it where rank 0 leaves it."""
    ranked(monkeypatch, 9, rank=0)
    monkeypatch.setenv(exit_codes.FILE, str(tmp_path / "code"))
    met = Rendezvous(distributed.HashStore(), place(0, 2))
    problems = [["seed", "1", "no number", "give one"]]
    met.store.set("failed", json.dumps(["node_rank 1 (host1)", ExitCode.USER_ERROR, problems]))
    met.store.add("ended", 1)
    monkeypatch.setattr(rendezvous, "_meeting", met)

    @command
    @rendezvous.report_failures
    def main():
        met.barrier("", LONG)

    assert main() == ExitCode.USER_ERROR == exit_codes.read(tmp_path / "code")


def test_rank_0_that_cannot_start_waits_until_all_know_it():
    """It holds the store: gone too early, the others would not know why."""
    job = Job(2)
    first = threading.Thread(target=job.run, args=(fails(0), [0]))
    first.start()
    first.join(0.5)
    assert first.is_alive()
    job.run(wait, [1])
    first.join()
    assert [error.problems[0].wrong for error in job.ended.values()] == ["too small"] * 2


def test_what_broke_down_is_no_mistake():
    broken = UserError(WRONG)
    broken.exit_code = 1
    assert {error.exit_code for error in Job().run(fails(2, error=broken), range(4)).values()} == {
        1
    }


def test_ranks_are_unique_and_counted_alike_on_all_machines():
    twice, others = Job(2), Job(2)
    twice.store.add("entered/1", 1)
    assert "another process is rank 1 already" in str(twice.run(wait, [0, 1])[0])
    others.store.set("world", "4")
    assert "and 4 on another machine" in str(others.run(wait, [0, 1])[0])


def test_one_who_is_asked_to_stop_takes_all_along(monkeypatch):
    monkeypatch.setattr(rendezvous, "LINGER_SECONDS", 1.0)
    asked = set()
    rendezvous.leave_when(lambda: "SIGTERM" if threading.get_ident() in asked else None)

    def work(met, rank):
        if rank == 2:
            asked.add(threading.get_ident())
        met.barrier("", LONG)

    ended = Job().run(work, range(3))  # rank 3 never comes
    assert {error.exit_code for error in ended.values()} == {1}
    assert "= 'SIGTERM': node_rank 1 (host1) was stopped while it waited for the others" in str(
        ended[0]
    )


def test_a_store_that_is_gone_ends_the_wait():
    class Gone:
        def set(self, *arguments):
            raise RuntimeError("Connection reset by peer\nand a stack")

        add = compare_set = check = set

    met = Rendezvous(Gone(), place(2))
    with pytest.raises(NotTogether, match="is gone \\(Connection reset by peer\\)") as caught:
        met.barrier("", LONG)
    assert met.end(caught.value).on_one_rank, "rank 0 cannot say it"


def ranked(monkeypatch, port, rank=1):
    given = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_SIZE": 1, "CROSS_RANK": rank}
    for name, value in {**given, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))


def test_a_job_on_one_machine_meets_nobody(monkeypatch):
    ranked(monkeypatch, 9)
    monkeypatch.setenv("LOCAL_SIZE", "2")
    assert rendezvous.current(1) is None


def test_what_breaks_a_rank_is_told_and_stays_its_own_error(monkeypatch):
    ranked(monkeypatch, 9)
    met = Rendezvous(distributed.HashStore(), place(1, 2))
    monkeypatch.setattr(rendezvous, "_meeting", met)
    monkeypatch.setattr(rendezvous, "LINGER_SECONDS", 0.0)

    @rendezvous.report_failures
    def main():
        raise KeyError("oops")

    with pytest.raises(KeyError):
        main()
    machine, code, problems = json.loads(met.store.get("failed"))
    assert (machine, code) == (
        "node_rank 0 (host0)",
        1,
    ) and "ended with KeyError: 'oops'" in problems[0][2]


def test_rank_0_that_does_not_answer_ends_the_wait_as_a_request_to_stop_does(monkeypatch):
    ranked(monkeypatch, 9)
    with pytest.raises(NotTogether, match="rank 0 did not answer node_rank 1"):
        rendezvous.current(0.2)
    rendezvous.leave_when(lambda: "SIGTERM")
    with pytest.raises(NotTogether, match="SIGTERM"):
        rendezvous.current(LONG)


def test_a_port_that_is_taken_is_a_mistake(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        ranked(monkeypatch, taken.getsockname()[1], rank=0)
        with pytest.raises(UserError, match=r"--master_port = .*: taken on this machine"):
            rendezvous.current(2)


def test_an_address_without_a_port_is_a_mistake(monkeypatch):
    """srun hands on what the shell has, which may be an address alone."""
    ranked(monkeypatch, 9)
    monkeypatch.delenv("MASTER_PORT")
    with pytest.raises(UserError, match="MASTER_PORT"):
        rendezvous.current(1)
