"""The outermost modules of a kind."""

from torch import nn

from tape_ds.models.outermost import outermost_modules


def test_a_module_inside_another_of_the_kinds_is_left_out():
    """A path that only begins like another's is beside it, not inside."""
    inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model = nn.Module()
    model.one = nn.Sequential(inner, nn.Linear(2, 2))
    model.one_more = nn.Linear(2, 2)
    assert outermost_modules(model, nn.Sequential) == {"one": model.one}
    both = outermost_modules(model, (nn.Sequential, nn.Linear))
    assert both == {"one": model.one, "one_more": model.one_more}
    assert list(outermost_modules(model, nn.ReLU)) == ["one.0.1"]
