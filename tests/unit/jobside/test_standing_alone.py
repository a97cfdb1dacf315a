"""Training scripts import the room, so it may need nothing that they have not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[3]
BLOCKED = """
import sys
from importlib.abc import MetaPathFinder

class Nothing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in sys.stdlib_module_names and not (
            name == "slurmsched" or name.startswith("slurmsched.jobside")
        ):
            raise ImportError(f"{name} is not there")

sys.meta_path.insert(0, Nothing())
import slurmsched.jobside
training = slurmsched.jobside.Training(lambda path: path.touch(), lambda path: None, folder=sys.argv[1])
training.step()
training.save()
print(training.steps, slurmsched.jobside.Checkpoints(training._saving.checkpoints.folder).newest().step)
"""


def test_it_works_where_nothing_but_python_is_installed(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-c", BLOCKED, str(tmp_path)], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert (said.stdout, said.returncode) == ("1 1\n", 0), said.stderr
