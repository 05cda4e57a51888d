"""What docs/export.md prints, its commands print. `python -m tests.export.test_docs` writes their output into it."""

import sys

from tests.readme import ROOT, rendered

DOCUMENT = ROOT / "docs" / "export.md"


def test_every_command_of_the_document_prints_what_it_shows() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert rendered(text) == text, "docs/export.md is out of date: python -m tests.export.test_docs"


if __name__ == "__main__":
    DOCUMENT.write_text(rendered(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"wrote {DOCUMENT}\n")
