"""The memory of a plan's groups and hosts as tables."""

from collections.abc import Sequence

from meshwright.cost.host import HostMemory
from meshwright.cost.memory import Filled, Memory
from meshwright.report.blocks import Block, table
from meshwright.units import show_bytes


def memory_table(groups: Sequence[Memory]) -> Block:
    """The peak of each group by what it is for; groups that are alike stand in one row."""
    parts = _parts(groups)
    alike: dict[tuple[str, ...], list[int]] = {}
    for each in groups:
        alike.setdefault(_cells(each, parts), []).extend(each.stages)
    rows = [(_numbers(sorted(numbers)), *cells) for cells, numbers in alike.items()]
    return table("memory of one device, at its peak", _names("stages", parts), rows)


def host_tables(hosts: Sequence[HostMemory]) -> list[Block]:
    """The same of the hosts of nodes; none where nothing is offloaded."""
    parts = _parts(hosts)
    alike: dict[tuple[str, ...], list[HostMemory]] = {}
    for each in hosts:
        alike.setdefault((each.pool, str(each.ranks), *_cells(each, parts)), []).append(each)
    rows = [
        (_numbers(sorted({stage for each in same for stage in each.stages})), str(_nodes(same)), *cells)
        for cells, same in alike.items()
    ]
    names = _names("stages | >nodes | pool | >ranks", parts)
    return [table("memory of one node's host, at its peak", names, rows)] if rows else []


def _nodes(same: Sequence[HostMemory]) -> int:
    return sum(each.alike for each in same)


def _parts(filled: Sequence[Filled]) -> list[str]:
    return [part for part in _PARTS if any(each.worst.parts.get(part) for each in filled)]


def _names(first: str, parts: Sequence[str]) -> str:
    asked = (">with overheads", ">of", ">out of memory")
    return " | ".join((first, *(f">{part}" for part in parts), ">peak", "at", *asked))


def _cells(each: Filled, parts: Sequence[str]) -> tuple[str, ...]:
    sizes = [show_bytes(each.worst.parts[part]) if each.worst.parts.get(part) else "-" for part in parts]
    asked = str(each.asked), show_bytes(each.capacity), f"{each.out_of_memory:.0%}"
    return (*sizes, show_bytes(each.peak), each.worst.name, *asked)


_PARTS = ("parameters", "gradients", "optimizer", "activations", "gathered", "logits", "recomputed", "reduced", "loss")


def _numbers(stages: list[int]) -> str:
    runs: list[list[int]] = []
    for number in stages:
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
