"""Ranks on several machines wait for each other, and end together: threads with one store stand for them."""

import socket
import threading
import time

import pytest
from torch import distributed

from tape_ds.errors import EXIT_CODE, Problem, UserError, command
from tape_ds.training.cluster import roll_call
from tape_ds.training.cluster.place import Place
from tape_ds.training.cluster.roll_call import NotTogether, RollCall

WRONG = Problem("window", 3, "too small", "give 4")


def place(rank, world=4):
    """Two ranks a machine."""
    return Place(rank, world, rank % 2, 2, rank // 2, f"host{rank // 2}", world // 2)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(roll_call, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(roll_call, "LINGER_SECONDS", 1.0)
    monkeypatch.setattr(roll_call, "LEAVE_SECONDS", 0.3)
    monkeypatch.setattr(roll_call, "_asked", roll_call._nobody_asks)


class Job:
    """Ranks that do something each; what came of it, by rank."""

    def __init__(self, world=4):
        self.store, self.world = distributed.HashStore(), world
        self.said: list[str] = []
        self.ended: dict[int, object] = {}

    def call(self, rank):
        return RollCall(self.store, place(rank, self.world), self.said.append)

    def run(self, work, ranks):
        def one(rank):
            try:
                self.ended[rank] = work(self.call(rank), rank)
            except UserError as error:
                self.ended[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        return self.ended


def test_all_go_on_when_all_are_here():
    order = []

    def work(call, rank):
        time.sleep(0.05 * rank)
        call.attend(10)
        order.append(rank)
        call.attend(10)
        return "here"

    assert Job().run(work, range(4)) == dict.fromkeys(range(4), "here")
    assert sorted(order) == [0, 1, 2, 3]


def test_rank_0_judges_what_all_say():
    ended = Job().run(lambda call, rank: call.exchange(f"r{rank}", "+".join, 10), range(4))
    assert ended == dict.fromkeys(range(4), "r0+r1+r2+r3")


def test_who_does_not_come_is_named_by_machine_and_ranks():
    ended = Job(6).run(lambda call, rank: call.attend(0.3), [0, 1, 3])
    assert all(isinstance(error, NotTogether) for error in ended.values())
    assert "node_rank 1, rank 2; node_rank 2, ranks 4-5 did not come within" in str(ended[0])


def test_rank_0_says_for_whom_it_waits(monkeypatch):
    monkeypatch.setattr(roll_call, "NOTICE_SECONDS", 0.1)
    job = Job()
    job.run(lambda call, rank: call.attend(0.35), [0, 1])
    assert job.said and all(line.startswith("waiting for node_rank 1, ranks 2-3 since") for line in job.said)


def test_what_one_machine_cannot_do_ends_all_at_once():
    def work(call, rank):
        if rank == 3:
            raise UserError(call.decline([WRONG]))
        call.attend(60)

    begun = time.monotonic()
    ended = Job().run(work, range(4))
    assert time.monotonic() - begun < 10 and all(type(error) is UserError for error in ended.values())
    (problem,) = ended[0].problems
    assert problem.field == "window on node_rank 1 (host1), rank 3" and problem.wrong == "too small"


def test_what_all_cannot_do_is_said_as_on_one_machine():
    ended = Job().run(lambda call, rank: call.decline([WRONG]), range(4))
    assert [(each.field, each.value) for each in ended[0]] == [("window", "3")] and ended[3] == [WRONG]


def test_what_broke_down_is_no_mistake():
    def work(call, rank):
        if rank == 2:
            return call.decline([WRONG], broken=True)
        return call.attend(60)

    ended = Job().run(work, range(4))
    assert [type(ended[rank]) for rank in (0, 1, 3)] == [NotTogether] * 3 and "window on node_rank 1" in str(ended[0])


def test_nobody_ends_before_all_have_heard_it():
    """Rank 0 holds the store: gone too early, the others would not know why."""

    def work(call, rank):
        if rank == 1:
            call.decline([WRONG])
            return time.monotonic()
        time.sleep(0.3 * (rank > 1))
        with pytest.raises(UserError):
            call.attend(60)
        return time.monotonic()

    begun = time.monotonic()
    ended = Job().run(work, range(4))
    assert min(ended.values()) - begun > 0.3


def test_two_processes_of_one_number_are_named():
    job = Job(2)
    job.call(1).store.add("entered/1", 1)
    ended = job.run(lambda call, rank: call.attend(0.2), [1])
    assert "another process is rank 1 already" in str(ended[1])


def test_machines_that_count_different_ranks_are_named():
    job = Job(4)
    job.run(lambda call, rank: call.attend(0.1), [0])
    job.world = 2
    ended = job.run(lambda call, rank: call.attend(0.1), [1])
    assert "counts so many ranks, another machine 4" in str(ended[1])


def test_who_counts_other_ranks_says_so_with_whatever_else_is_wrong():
    """A batch that the ranks do not divide comes of it."""
    job = Job(2)
    counts_three = RollCall(job.store, place(2, 3), print)
    declining = threading.Thread(target=counts_three.decline, args=([WRONG],))

    def work(call, rank):
        call.store.compare_set("world", "", "2")
        declining.start()
        call.attend(10)

    ended = job.run(work, [0])
    assert [problem.field.split(" on ")[0] for problem in ended[0].problems] == ["window", "ranks"]
    declining.join()


def test_a_rank_that_the_first_does_not_count_is_heard_all_the_same():
    """Another hostfile there: its ranks' numbers begin elsewhere."""
    job = Job(2)

    def work(call, rank):
        if rank == 5:
            raise UserError(call.decline([WRONG]))
        call.attend(10)

    ended = job.run(work, [0, 5])
    assert [problem.field for problem in ended[0].problems] == ["window on node_rank 2 (host2), rank 5"]


def test_two_processes_of_one_rank_are_both_heard():
    job = Job(2)
    other = Problem("seed", 1, "no number", "give one")
    threads = [threading.Thread(target=job.call(1).decline, args=([problem],)) for problem in (WRONG, other)]
    for thread in threads:
        thread.start()
    ended = job.run(lambda call, rank: call.attend(10), [0])
    assert {problem.wrong for problem in ended[0].problems} == {"too small", "no number"}
    for thread in threads:
        thread.join()


def test_one_who_is_asked_to_stop_takes_all_along_at_once():
    asked = set()
    roll_call.leave_when(lambda: "SIGTERM" if threading.get_ident() in asked else None)

    def work(call, rank):
        if rank == 2:
            asked.add(threading.get_ident())
        call.attend(60)

    begun = time.monotonic()
    ended = Job().run(work, range(3))  # rank 3 never comes
    assert time.monotonic() - begun < 5 and all(type(error) is NotTogether for error in ended.values())
    assert "= 'SIGTERM': node_rank 1 (host1) was stopped while it waited for the others" in str(ended[0])


def test_a_reason_that_rank_0_does_not_say_is_said_where_it_is(monkeypatch, capsys):
    """Rank 0 has gone on, or is gone: who declines would be the only one to know why."""
    ranked(monkeypatch)
    call = RollCall(distributed.HashStore(), place(2, 4), print)
    monkeypatch.setattr(roll_call, "_call", call)

    @roll_call.answering
    def main():
        raise UserError(WRONG)

    with pytest.raises(UserError, match="too small") as caught:
        main()
    assert caught.value.on_one_rank and "the first machine has not said why" in capsys.readouterr().err


def test_where_rank_0_itself_does_not_come_the_others_say_it(monkeypatch):
    ranked(monkeypatch)
    ended = Job().run(lambda call, rank: call.attend(0.2), [2, 3])
    assert [ended[rank].on_one_rank for rank in (2, 3)] == [True, False]


def test_a_store_that_is_gone_ends_the_wait(monkeypatch):
    ranked(monkeypatch)

    class Gone:
        def set(self, *arguments):
            raise RuntimeError("Connection reset by peer")

        add = compare_set = check = set

    call = Job().call(1)
    call.store = Gone()
    with pytest.raises(NotTogether, match="is gone \\(Connection reset by peer\\)") as caught:
        call.attend(10)
    assert caught.value.on_one_rank, "rank 0 cannot say it"


def ranked(monkeypatch, rank=1, world=2):
    for name, value in {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": 0,
        "LOCAL_SIZE": 1,
        "CROSS_RANK": rank,
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(roll_call, "_call", None)
    monkeypatch.setattr(roll_call, "_gave_up", False)


def test_a_job_on_one_machine_calls_nobody(monkeypatch):
    ranked(monkeypatch)
    monkeypatch.setenv("LOCAL_SIZE", "2")
    assert roll_call.current() is None
    roll_call.attend(1)


@pytest.mark.parametrize(("raised", "code"), [(UserError(WRONG), EXIT_CODE), (NotTogether(WRONG), 1)])
def test_a_mistake_and_a_machine_that_broke_have_their_codes(raised, code, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)

    @command
    @roll_call.answering
    def main():
        raise raised

    assert main() == code


def test_what_breaks_a_rank_is_told_and_stays_its_own_error(monkeypatch):
    ranked(monkeypatch)
    told = []
    monkeypatch.setattr(roll_call, "_decline", lambda problems, broken: told.append((str(problems[0]), broken)))

    @roll_call.answering
    def main():
        raise KeyError("oops")

    with pytest.raises(KeyError):
        main()
    assert "ended with KeyError: 'oops'" in told[0][0] and told[0][1]


def test_rank_0_that_does_not_answer_is_said_on_each_machine(monkeypatch, capsys):
    ranked(monkeypatch)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "9")
    with pytest.raises(NotTogether, match=r"--master_addr = '127.0.0.1': rank 0 did not answer") as caught:
        roll_call.current(0.2)
    assert caught.value.on_one_rank


def test_one_who_waits_for_rank_0_can_be_asked_to_stop(monkeypatch):
    ranked(monkeypatch)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "9")
    roll_call.leave_when(lambda: "SIGTERM")
    with pytest.raises(NotTogether, match="SIGTERM"):
        roll_call.current(60)


def test_who_listens_there_and_says_nothing_is_not_waited_for(monkeypatch):
    ranked(monkeypatch)
    monkeypatch.setattr(roll_call, "ANSWER_SECONDS", 0.5)
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(mute.getsockname()[1]))
        with pytest.raises(NotTogether, match="is not this job's rank 0"):
            roll_call.current(2)


def test_a_port_that_is_taken_is_said_by_rank_0(monkeypatch):
    ranked(monkeypatch, rank=0)
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        with pytest.raises(UserError, match=r"--master_port = .*: taken on this machine"):
            roll_call.current(2)
