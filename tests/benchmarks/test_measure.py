"""Statistics, turns, clocks and memory, on numbers that are known beforehand."""

import torch

from benchmarks.measure import Runner, TimedSample, interleaved, peak_bytes

CPU = torch.device("cpu")


def test_rivals_take_turns_after_their_warm_up():
    order = []
    runners = {name: Runner(lambda name=name: order.append(name), None, dict, 0) for name in "ab"}

    def take(runner):
        runner.forward()
        return TimedSample(float(len(order)), 0.0)

    samples = interleaved(runners, 3, take, warm_up=2)
    assert order == ["a", "a", "b", "b", "a", "b", "a", "b", "a", "b"]
    assert [each.forward for each in samples["a"]] == [5.0, 7.0, 9.0]
    assert [each.forward for each in samples["b"]] == [6.0, 8.0, 10.0]


def test_peak_memory_is_that_of_a_known_pattern():
    """16,000 bytes are alive before the first 4,000 go and 2,000 come; 5 are held beside them."""

    def forward():
        first = torch.empty(1_000)
        second = torch.empty(3_000)
        del first
        return second, torch.empty(500)

    runner = Runner(forward, None, dict, 5)
    assert peak_bytes(runner, CPU) == 16_005


def test_what_the_forward_keeps_is_alive_in_the_backward():
    runner = Runner(lambda: torch.empty(1_000), lambda kept: torch.empty(2_000), dict, 0)
    assert peak_bytes(runner, CPU) == 12_000
