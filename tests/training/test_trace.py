"""What a summary reads out of a trace, event by event; traces of a GPU are written by hand as torch writes them."""

import gzip
import json

import pytest

from tape_ds.training import trace
from tape_ds.training.trace import Collective, summarise

MAIN, OTHER = 1, 2


def span(name, begin, end, category="cpu_op", thread=MAIN, **args):
    """Milliseconds in, the trace's microseconds out."""
    times = {"ts": 1e3 * begin, "dur": 1e3 * (end - begin)}
    return {"ph": "X", "cat": category, "name": name, "tid": thread, **times, "args": args}


def mark(name, begin, end):
    return span(name, begin, end, "user_annotation")


def memory(time, size, kind=0, thread=MAIN):
    args = {"Bytes": size, "Device Type": kind}
    return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "tid": thread, "ts": 1e3 * time, "args": args}


STEP = [
    mark(trace.WINDOW, 0, 100),
    mark(trace.PHASE + "data", 0, 5),
    mark(trace.PHASE + "forward", 10, 30),
    mark(trace.PHASE + "backward", 30, 90),
    mark(trace.PHASE + "optimizer", 70, 88),
]


def test_phases_share_the_wall_time():
    """The optimizer's is inside the backward's call under an engine."""
    found = summarise(STEP)
    assert found.window == 100
    assert found.phases == {"data": 5, "forward": 20, "backward": 42, "optimizer": 18, "other": 15}


def test_times_are_an_operators_own_and_add_up():
    events = [
        *STEP,
        mark(trace.PART + "attention", 12, 20),
        span("aten::matmul", 13, 18, **{"External id": 1}),
        span("aten::mm", 14, 17, **{"External id": 2}),
        mark(trace.PART + "rotation", 18, 19),
    ]
    parts = summarise(events).parts
    assert parts["attention"]["forward"] == pytest.approx(7)
    assert parts["rotation"]["forward"] == pytest.approx(1)
    assert sum(sum(times.values()) for times in parts.values()) == pytest.approx(100)


def test_a_backward_operator_belongs_to_its_forward():
    """By the sequence number; the last operator that carries it makes the node, those before only ask for it."""
    events = [
        *STEP,
        span("aten::detach", 11, 12, **{"Sequence number": 7}),
        mark(trace.PART + "feed-forward", 12, 20),
        span("aten::mm", 13, 14, **{"Sequence number": 7}),
        span("autograd::engine::evaluate_function: MmBackward0", 40, 50, **{"Sequence number": 7}),
        span("aten::mm", 42, 48),
        span("autograd::engine::evaluate_function: Unknown", 50, 60, **{"Sequence number": 8}),
    ]
    parts = summarise(events).parts
    assert parts["feed-forward"]["backward"] == pytest.approx(10)
    assert parts["other"]["backward"] == pytest.approx(42 - 10)


def test_what_is_computed_again_belongs_to_its_part():
    """A block's recompute is called from the backward of whatever asked for it first."""
    events = [
        *STEP,
        mark(trace.PART + "norms", 12, 20),
        span("aten::mul", 13, 14, **{"Sequence number": 3}),
        span("autograd::engine::evaluate_function: MulBackward0", 40, 60, **{"Sequence number": 3}),
        mark(trace.PART + "attention", 45, 55),
    ]
    parts = summarise(events).parts
    assert (parts["norms"]["backward"], parts["attention"]["backward"]) == (pytest.approx(10), pytest.approx(10))


def test_a_mark_that_outlives_the_call_that_set_it():
    """Under a dispatch mode, ``record_function`` itself is a call that the mode sees, and so is its end."""
    events = [
        *STEP,
        span("PythonDispatchMode", 12, 12.5),
        mark(trace.PART + "norms", 12.25, 19),
        span("PythonDispatchMode", 18.75, 19.25),
    ]
    parts = summarise(events).parts
    assert parts["norms"]["forward"] == pytest.approx(6.5)
    assert sum(sum(times.values()) for times in parts.values()) == pytest.approx(100)


def test_kernels_belong_to_what_started_them():
    """They run later and elsewhere: started in the forward, a kernel may run when the backward has begun. The
    backward's own thread refers to the main thread's sequence numbers."""
    events = [
        *STEP,
        mark(trace.PART + "attention", 12, 20),
        span("aten::mm", 13, 14, **{"External id": 5, "Sequence number": 2}),
        span("gemm", 25, 37, "kernel", 77, **{"External id": 5}),
        span("autograd::engine::evaluate_function: MmBackward0", 31, 32, thread=OTHER, **{"Sequence number": 2}),
        span("aten::mm", 31.2, 31.8, thread=OTHER, **{"External id": 6, "Sequence number": 2}),
        span("gemm", 37, 60, "kernel", 77, **{"External id": 6}),
        span("Memcpy DtoH", 60, 61, "gpu_memcpy", 78),
    ]
    found = summarise(events)
    assert found.on_device
    assert found.parts == {"attention": {"forward": 12, "backward": 23}, "other": {"backward": 1}}


def test_gloo_says_what_it_was_given():
    events = [
        *STEP,
        span("gloo:all_reduce", 30, 40, "user_annotation", OTHER, **{"Input Dims": [[4, 8]], "Input type": ["float"]}),
        span(
            "gloo:all_reduce", 35, 50, "user_annotation", 3, **{"Input Dims": [[10]], "Input type": ["c10::BFloat16"]}
        ),
        span("gloo:all_gather", 60, 62, "user_annotation", 3, **{"Input Dims": [[3]], "Input type": ["long int"]}),
        span("gloo:broadcast", 63, 64, "user_annotation", 3, **{"Input Dims": [[3]], "Input type": ["complex"]}),
        span("gloo:barrier", 65, 66, "user_annotation", 3),
    ]
    found = summarise(events)
    assert found.collectives == [
        Collective("all_gather", 1, 24, 2),
        Collective("all_reduce", 2, 4 * 32 + 20, 25),
        Collective("barrier", 1, 0, 1),
        Collective("broadcast", 1, None, 1),
    ]
    assert found.communicating == 20 + 2 + 1 + 1


def test_nccl_says_it_in_two_places():
    """Sizes are the call's, times the kernel's, under different names for the same."""
    sizes = {"Collective name": "_allgather_base", "In msg nelems": 1000, "Out msg nelems": 2000, "dtype": "BFloat16"}
    events = [
        *STEP,
        span("record_param_comms", 12, 12.1, **{"External id": 9}, **sizes),
        span("record_param_comms", 12.1, 12.2, **{"Collective name": "wait", "In msg nelems": 5, "dtype": "Byte"}),
        span("ncclDevKernel_AllGather_RING_LL(ncclDevComm*)", 15, 19, "kernel", 80, **{"External id": 9}),
    ]
    found = summarise(events)
    assert found.collectives == [Collective("all_gather", 1, 2000, 4)]
    assert found.parts["communication"] == {"forward": 4}


def test_memory_above_the_windows_begin():
    events = [
        *STEP,
        memory(-1, 999),
        mark(trace.PART + "head and loss", 20, 29),
        memory(12, 100),
        memory(25, 300),
        memory(26, -300),
        memory(40, 50),
        memory(80, -150),
    ]
    found = summarise(events)
    assert found.highest == {"data": 0, "forward": 400, "backward": 150, "optimizer": 0, "other": 0}
    assert found.highest_part == "head and loss"


def test_on_a_gpu_its_memory_counts():
    found = summarise([*STEP, memory(12, 5000), memory(13, 70, kind=1), memory(14, 30, kind=1)])
    assert found.highest["forward"] == 100


def test_a_trace_of_something_else_is_refused():
    with pytest.raises(ValueError, match="not recorded by this stack"):
        summarise([span("aten::mm", 0, 1)])


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_stored_trace(tmp_path, name):
    opened = gzip.open if name.endswith(".gz") else open
    with opened(tmp_path / name, "wt") as file:
        json.dump({"traceEvents": STEP}, file)
    assert trace.read(tmp_path / name) == STEP
