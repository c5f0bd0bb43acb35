"""Find the modules of a kind that are in no other of that kind."""

from torch import nn


def outermost_modules(
    model: nn.Module, kinds: type[nn.Module] | tuple[type[nn.Module], ...]
) -> dict[str, nn.Module]:
    """Return the modules of these kinds, without those inside another, by path."""
    found: dict[str, nn.Module] = {}
    inside: tuple[str, ...] = ()
    # a module comes before those inside of it
    for path, module in model.named_modules():
        if isinstance(module, kinds) and not path.startswith(inside):
            found[path] = module
            inside += (f"{path}.",)
    return found
