"""A compiled kernel's machine code: its registers, its loops, and the spills inside them."""

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from tape_ds.kernels.jit import triton

_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);", re.MULTILINE)
_JUMP = re.compile(r"0x([0-9a-f]+)")


class Instruction(NamedTuple):
    predicate: str
    name: str  # with its modifiers
    operands: str


class Code(NamedTuple):
    registers: int  # of one thread
    instructions: list[Instruction]
    looped: frozenset[int]  # indices of the instructions that are in a loop

    def count(self, prefix: str) -> int:
        return sum(instruction.name.startswith(prefix) for instruction in self.instructions)

    def spills(self) -> tuple[int, int]:
        """Count the instructions that move a spilled register: inside loops, outside."""
        places = [place for place, (_, name, _) in enumerate(self.instructions) if name.startswith(("STL", "LDL"))]
        inside = sum(place in self.looped for place in places)
        return inside, len(places) - inside


def read(binary: bytes) -> Code:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(binary)
        shown = [triton.knobs.nvidia.cuobjdump.path, "-sass", "-res-usage", str(path)]
        text = subprocess.run(shown, capture_output=True, text=True, check=True).stdout
    found = _INSTRUCTION.findall(text)
    places = {int(address, 16): place for place, (address, *_) in enumerate(found)}
    instructions = [Instruction(*each) for _, *each in found]
    (registers,) = re.findall(r"\bREG:(\d+)", text)
    return Code(int(registers), instructions, looped(instructions, places))


def looped(instructions: list[Instruction], places: dict[int, int]) -> frozenset[int]:
    """Return the indices of instructions that lead back to themselves."""
    # not every jump backwards is a loop: the assembler moves blocks after the end
    ways = []
    for place, (predicate, name, operands) in enumerate(instructions):
        ends = name.startswith(("EXIT", "RET", "BRA")) and not predicate
        if not ends and place + 1 < len(instructions):
            ways.append((place, place + 1))
        if name.startswith("BRA") and (jumped := _JUMP.search(operands)):
            ways.append((place, places[int(jumped[1], 16)]))
    if not ways:
        return frozenset()
    graph = coo_array(([1] * len(ways), tuple(zip(*ways, strict=True))), shape=(len(instructions), len(instructions)))
    _, component = connected_components(graph, connection="strong")
    sizes = Counter(component)
    themselves = {start for start, end in ways if start == end}
    return frozenset(place for place, part in enumerate(component) if sizes[part] > 1 or place in themselves)
