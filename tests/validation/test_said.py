"""What is corrected in rows, and what is filled in from elsewhere."""

import pytest

from meshwright.validation.rows import read_rows
from meshwright.validation.said import SAID, as_run
from meshwright.validation.traps import TRAPS, Trap


@pytest.mark.parametrize("entry", [*SAID, *TRAPS], ids=lambda entry: f"{entry.source}: {entry.reason[:40]}")
def test_every_entry_is_of_some_row_and_changes_it_alone(entry: Trap) -> None:
    rows = [row for row in read_rows(None) if entry.holds(row)]
    assert rows
    for row in rows:
        changed = {name for name, text in as_run(row).fields.items() if text != row.fields.get(name, "")}
        assert changed >= {name for name, text in entry.changes.items() if text != row.fields.get(name, "")}
