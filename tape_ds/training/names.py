"""Names of parameters as a person reads them: those of equal layers drawn together."""


def summarise(names: tuple[str, ...]) -> str:
    """Exact names, with the layer numbers of otherwise equal ones drawn together."""
    groups: dict[str, list[int]] = {}
    for name in names:
        parts = name.split(".")
        number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        layer = int(parts[number]) if number is not None else -1
        shape = ".".join("{}" if i == number else part for i, part in enumerate(parts))
        groups.setdefault(shape, []).append(layer)
    return "\n".join(shape.replace("{}", _ranges(layers)) for shape, layers in groups.items())


def _ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 4] -> "{0-2,4}"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return "{" + ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts) + "}"
