"""Programs in `benchmarks/` import what lies beside them; so do their tests. Last in line: some have names of the
standard library."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
