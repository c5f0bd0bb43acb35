"""What a finished kernel's machine code says: its registers, its loops, and what is spilled inside them."""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from tape_ds.kernels.jit import triton

_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);", re.MULTILINE)
_JUMP = re.compile(r"0x([0-9a-f]+)")


class Instruction(NamedTuple):
    """One line of the disassembly."""

    predicate: str
    name: str
    """With its modifiers."""
    operands: str


class Code(NamedTuple):
    """A kernel as the GPU runs it."""

    registers: int
    """Of one thread."""
    instructions: list[Instruction]
    loops: list[frozenset[int]]
    """Places of the instructions of each loop."""

    def count(self, start: str) -> int:
        """Instructions whose name starts so."""
        return sum(each.name.startswith(start) for each in self.instructions)

    def spills(self) -> tuple[int, int]:
        """Instructions that move a spilled register: inside loops, outside."""
        looped = frozenset().union(*self.loops)
        places = [place for place, each in enumerate(self.instructions) if each.name.startswith(("STL", "LDL"))]
        inside = sum(place in looped for place in places)
        return inside, len(places) - inside


def read(binary: bytes) -> Code:
    """Disassemble a cubin."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(binary)
        shown = [triton.knobs.nvidia.cuobjdump.path, "-sass", "-res-usage", str(path)]
        text = subprocess.run(shown, capture_output=True, text=True, check=True).stdout
    found = _INSTRUCTION.findall(text)
    places = {int(address, 16): place for place, (address, *_) in enumerate(found)}
    instructions = [Instruction(*each) for _, *each in found]
    (registers,) = re.findall(r"\bREG:(\d+)", text)
    return Code(int(registers), instructions, loops(instructions, places))


def loops(instructions: list[Instruction], places: dict[int, int]) -> list[frozenset[int]]:
    """Every loop: what lies on a way from the target of a jump backwards to that jump, by target.

    A block that was moved behind the end jumps backwards too; where its target does not lead to it, it is no loop.
    """
    after: list[list[int]] = []
    for place, (predicate, name, operands) in enumerate(instructions):
        ends = name.startswith(("EXIT", "RET", "BRA")) and not predicate
        following = [] if ends or place + 1 == len(instructions) else [place + 1]
        if name.startswith("BRA") and (jumped := _JUMP.search(operands)):
            following.append(places[int(jumped[1], 16)])
        after.append(following)
    before: list[list[int]] = [[] for _ in after]
    for place, following in enumerate(after):
        for each in following:
            before[each].append(place)
    found: dict[int, frozenset[int]] = {}
    for jump, following in enumerate(after):
        for target in following:
            if target < jump and jump in (ahead := reachable(target, after)):
                body = ahead & reachable(jump, before, until=target)
                found[target] = found.get(target, frozenset()) | body
    return list(found.values())


def reachable(start: int, edges: list[list[int]], until: int | None = None) -> frozenset[int]:
    """Places on any way from ``start``, itself among them, not going on behind ``until``."""
    seen, todo = {start}, [start]
    while todo:
        place = todo.pop()
        if place != until:
            fresh = set(edges[place]) - seen
            seen |= fresh
            todo.extend(fresh)
    return frozenset(seen)
