"""`python -m meshwright`, and the command `meshwright`."""

import gc

gc.set_threshold(50_000)  # Importing makes many lasting objects; looking through them again and again costs a tenth.

from meshwright.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
