"""What is corrected in rows, and what is filled in from elsewhere."""

import pytest

from meshwright.validation.frameworks import framework_of
from meshwright.validation.recipes import recipe_of
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


def test_all_that_is_known_of_a_row_is_filled_in() -> None:
    """Of fp8 runs with long sequences on GB200: the device and the recompute of one text, the moments of another."""
    long = [row for row in read_rows(None) if row.source == "megatron_moe_zoo" and row.text("precision") == "mxfp8"]
    found = [as_run(row) for row in long if row.text("seq_len") == "131072"]
    assert found
    for row in found:
        assert (row.text("gpu"), row.text("optimizer")) == ("GB300", "adam (bf16 moments)")
        assert recipe_of(row, framework_of(row)).optimizer.state == "bf16"


def test_adapters_are_those_that_notes_name() -> None:
    lora = [row for row in read_rows(None) if row.text("task") == "LoRA"]
    targets = {
        (row.source, len(recipe_of(row, framework_of(row)).trainable.lora.targets))
        for row in lora
        if row.text("precision")
    }
    assert targets >= {("mlperf", 4), ("nemo_docs", 3)}
