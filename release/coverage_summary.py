"""How much of the package the tests run: the total, and the five modules with the most lines that no test runs.

Reads what `pytest --cov` wrote; ends with 2 below the floor `fail_under` of setup.cfg. Run by `make coverage`.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Final

import coverage

CHECKOUT: Final = Path(__file__).resolve().parents[1]
SHOWN: Final = 5
BELOW: Final = 2


def main() -> int:
    """Print the summary; the exit code."""
    measured = coverage.Coverage(config_file=str(CHECKOUT / "setup.cfg"))
    measured.load()
    floor = float(str(measured.get_option("report:fail_under")))
    total = measured.report(file=io.StringIO())
    missed = []
    for file in measured.get_data().measured_files():
        _, statements, _, missing, _ = measured.analysis2(file)
        missed.append((len(missing), len(statements), Path(file)))
    print(f"coverage {total:.1f} % of lines, floor {floor:g} %; most lines without a test:")
    for missing, statements, path in sorted(missed, key=lambda entry: (-entry[0], entry[2]))[:SHOWN]:
        print(f"  {missing:4} of {statements:4}  {path.relative_to(CHECKOUT)}")
    if total < floor:
        print(f"coverage fell below {floor:g} %: test what was added", file=sys.stderr)
        return BELOW
    return 0


if __name__ == "__main__":
    sys.exit(main())
