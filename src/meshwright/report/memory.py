"""The memory of a plan's groups as tables."""

from meshwright.cost.memory import Memory
from meshwright.report.blocks import Block, table
from meshwright.units import show_bytes


def memory_table(groups: tuple[Memory, ...]) -> Block:
    """The peak of each group by what it is for; groups that are alike stand in one row."""
    parts = [part for part in _PARTS if any(each.worst.parts.get(part) for each in groups)]
    alike: dict[tuple[str, ...], list[int]] = {}
    for each in groups:
        sizes = [show_bytes(each.worst.parts[part]) if each.worst.parts.get(part) else "-" for part in parts]
        cells = (*sizes, show_bytes(each.peak), each.worst.name, *_asked(each))
        alike.setdefault(cells, []).extend(each.stages)
    rows = [(_numbers(sorted(numbers)), *cells) for cells, numbers in alike.items()]
    asked = (">with overheads", ">of", ">out of memory")
    names = " | ".join(("stages", *(f">{part}" for part in parts), ">peak", "at", *asked))
    return table("memory of one device, at its peak", names, rows)


def _asked(memory: Memory) -> tuple[str, ...]:
    return str(memory.footprint.device), show_bytes(memory.capacity), f"{memory.out_of_memory:.0%}"


_PARTS = ("parameters", "gradients", "optimizer", "activations", "gathered", "logits", "recomputed", "reduced", "loss")


def _numbers(stages: list[int]) -> str:
    runs: list[list[int]] = []
    for number in stages:
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
