"""What a finished kernel's machine code says: registers, loops, spills inside them, waits, and a model of its speed.

The model counts one pass through the hottest loop. A processor of the GPU has four schedulers; each issues one
instruction a cycle for its share of the warps, and has a tensor core. A program's own instructions and its products
wait for each other, so alone it needs the cycles of both, one after the other; programs that lie on a processor
together fill each other's gaps, until the schedulers or the tensor cores are busy throughout:

    cycles = max(issued + multiplying of one program, issued of all, multiplying of all)

The rate is the share of the cycles that multiply at the full rate, of 0.8 times the data sheet's TFLOP/s, about what
the largest matrix products reach. It knows nothing of memory, of the special function unit, or of a loop's ends.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tape_ds.kernels.jit import triton

SCHEDULERS = 4
REGISTERS, WARPS, PROGRAMS = 65536, 64, 32
"""Most on one processor."""
SHARED = {80: 164 * 1024, 90: 228 * 1024}
"""Bytes of shared memory of one processor, a KiB of which each program loses."""
DATA_SHEET = {80: 312.0, 90: 989.0}
"""Dense TFLOP/s with 16-bit operands of an A100 and an H100 SXM."""
REACHED = 0.8
MULTIPLY_ADDS = {80: 256, 90: 512}
"""Of one tensor core in a cycle."""
WARP_PRODUCTS = {80: 1.0, 90: 0.6}
"""Share of that rate that a warp's own products (HMMA) are assumed to reach: on sm_90 only those of four warps (HGMMA)
have it whole."""
SHARED_BYTES = 128
"""That a processor reads from shared memory in a cycle, which bounds narrow HGMMA."""

_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);", re.MULTILINE)
_JUMP = re.compile(r"0x([0-9a-f]+)")
_PRODUCT = re.compile(r"HGMMA\.64x(\d+)x16\b|HMMA\.16(8)(8|16)\b")


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

    def hottest(self) -> list[Instruction]:
        """Of the loops with no other inside, the one that multiplies most, and of those (masks are rarely needed) the
        shortest; empty where there is no loop."""
        inner = [loop for loop in self.loops if not any(other < loop for other in self.loops)]
        found = [[each for place in sorted(loop) if (each := self.instructions[place]).name != "NOP"] for loop in inner]
        return max(found, key=lambda loop: (products(loop), -len(loop)), default=[])


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


def products(loop: Iterable[Instruction]) -> int:
    """Multiply-adds of one warp on tensor cores."""
    return sum(_multiply_adds(each) for each in loop)


def _multiply_adds(each: Instruction) -> int:
    """Of one warp; an HGMMA's are shared by four."""
    if not (found := _PRODUCT.match(each.name)):
        return 0
    if found[1]:
        return 16 * int(found[1]) * 16
    return 16 * 8 * int(found[3])


def _cycles(each: Instruction, capability: int) -> float:
    """That one warp's share of an instruction keeps its tensor core busy."""
    work = _multiply_adds(each) / MULTIPLY_ADDS[capability]
    if not each.name.startswith("HGMMA"):
        return work / WARP_PRODUCTS[capability]
    read = (0 if re.match(r"R\d+, R\d+", each.operands) else 64) + int(each.name[len("HGMMA.64x") :].partition("x")[0])
    return max(work, read * 16 * 2 / SHARED_BYTES)  # rows of 16 numbers, of the first factor only where it lies there


def tflops(code: Code, capability: int, warps: int, shared: int) -> float | None:
    """Of the whole GPU, by the model; None where nothing is multiplied in a loop."""
    loop = code.hottest()
    if not products(loop):
        return None
    allotted = -(-code.registers // 8) * 8 * 32 * warps
    together = min(REGISTERS // allotted, SHARED[capability] // (shared + 1024), WARPS // warps, PROGRAMS)
    issued, multiplying = len(loop), sum(_cycles(each, capability) for each in loop)
    share, alone = together * warps / SCHEDULERS, -(-warps // SCHEDULERS)
    cycles = max(alone * (issued + multiplying), share * issued, share * multiplying)
    useful = share * products(loop) / MULTIPLY_ADDS[capability]
    return REACHED * DATA_SHEET[capability] * useful / cycles
