"""Plans as text."""

from tape_ds.planning import search, tables
from tests.planning.helpers import FROZEN, job


def test_parts_of_memory_add_up_to_what_is_said_in_all():
    shown = tables.figures(job(trained=FROZEN, checkpoint_layers=1))["memory"]
    for parts in shown.values():
        assert abs(sum(size for name, size in parts.items() if name != "total") - parts["total"]) < 1


def test_a_cpu_gets_memory_and_no_time():
    told = tables.plan(job(gpu=None, gpus=1))
    assert "CPU" in told and "weights" in told and "tokens/s" not in told


def test_a_run_has_hours_and_a_price():
    told = tables.plan(job(steps=1000, price=2.0))
    assert "1,000 steps" in told and "GPU-hours" in told and "at 2 for a GPU and hour" in told


def test_a_ranking_says_what_does_not_fit():
    found = search.search(job(model="llama2-70b", gpus=1, global_batch=1, gpu="a100-40"))
    assert "does not fit" in tables.ranking(found, shown=1)


def test_columns_are_aligned():
    assert tables.aligned([("a", "1"), ("bbb", "22")]) == "a     1\nbbb  22"
    assert tables.markdown(["x", "y"], [["1", "2"]]) == "| x | y |\n| --- | --- |\n| 1 | 2 |"
