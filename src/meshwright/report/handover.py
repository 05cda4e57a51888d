"""What was handed over to another system, or taken in from one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from meshwright.document import write_text
from meshwright.errors import DocumentError
from meshwright.plan.diff import Change
from meshwright.plan.spec import Plan
from meshwright.report.blocks import Block, Facts, Lines, table
from meshwright.report.changes import changes_data


def write_files(files: Mapping[str, str], output: str) -> list[str]:
    """Write files to a folder, or a single one to where `output` says; the paths. Raises DocumentError."""
    path = Path(output)
    if len(files) == 1 and not path.is_dir() and not output.endswith("/"):
        write_text(path, next(iter(files.values())))
        return [output]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DocumentError(f"cannot make the folder {output}: {error.strerror or error}") from None
    for name, text in files.items():
        write_text(path / name, text)
    return [str(path / name) for name in files]


def printed(files: Mapping[str, str]) -> str:
    """Files one after the other, each under its name where there are several."""
    if len(files) == 1:
        return next(iter(files.values()))
    return "".join(f"# {name}\n{text}" for name, text in files.items())


def slower(slowdown: float | None, fits: bool) -> str:
    """How the plan that was written compares with the given one."""
    if slowdown is None:
        return "is the given plan"
    share = f"{abs(slowdown):.1%} {'slower' if slowdown > 0 else 'faster'} than the given plan, as predicted"
    return share + ("" if fits else "; it does not fit into the devices' memory")


class Handed(Protocol):
    """What a handover has (`export.handing.Handover`)."""

    @property
    def files(self) -> Mapping[str, str]: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def reasons(self) -> Sequence[str]: ...
    @property
    def changes(self) -> Sequence[Change]: ...
    @property
    def slowdown(self) -> float | None: ...
    @property
    def fits(self) -> bool: ...
    @property
    def notes(self) -> Sequence[str]: ...


def handover_data(done: Handed) -> dict[str, Any]:
    """A handover as plain data."""
    return {
        "files": dict(done.files),
        "exact": done.slowdown is None,
        "reasons": list(done.reasons),
        "changes": changes_data(done.changes),
        "slowdown": done.slowdown,
        "fits": done.fits,
        "notes": list(done.notes),
        "plan": done.plan.as_data(),
    }


def handover_blocks(done: Handed, wrote: Sequence[str]) -> list[Block]:
    """The same for a person, with the paths that were written."""
    files = [("files", ", ".join(wrote))] if wrote else []
    blocks: list[Block] = [Facts("Written", (*files, ("plan", slower(done.slowdown, done.fits))))]
    if done.reasons:
        blocks.append(Lines("What cannot be said of the given plan", tuple(done.reasons), "warning"))
    if done.changes:
        rows = [(change.where, change.before, change.after) for change in done.changes]
        blocks.append(table("Written instead", "where | given | written", rows))
    if done.notes:
        blocks.append(Lines("To do", tuple(done.notes)))
    return blocks


def taken_blocks(facts: Sequence[tuple[str, str]], left: Sequence[str], notes: Sequence[str]) -> list[Block]:
    """What was taken in: what it is, what was left out, what may be wrong."""
    blocks: list[Block] = [Facts("Taken in", tuple(facts))]
    if left:
        blocks.append(Lines("Left out: nothing of a plan, a recipe or a model, or not known", (", ".join(left),)))
    if notes:
        blocks.append(Lines("", tuple(notes), "warning"))
    return blocks
