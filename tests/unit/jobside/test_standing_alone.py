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
        if name.partition(".")[0] not in (*sys.stdlib_module_names, *sys.argv[2:]) and not (
            name == "slurmsched" or name.startswith("slurmsched.jobside")
        ):
            raise ImportError(f"{name} is not there")

sys.meta_path.insert(0, Nothing())
import slurmsched.jobside
training = slurmsched.jobside.Training(lambda path: path.touch(), lambda path: None, folder=sys.argv[1])
training.step()
training.save()
print(training.steps, slurmsched.jobside.Checkpoints(training._checkpoints.checkpoints.folder).newest().step)
"""


FORKED = """
from pathlib import Path
from slurmsched.jobside.tensors import read_arrays, write_arrays
from slurmsched.jobside.forking import CopyState, average
import numpy
folder = Path(sys.argv[1])
for number in range(2):
    write_arrays(folder / str(number), {"weights": numpy.full(3, float(number))})
average([CopyState(folder / "0", 1), CopyState(folder / "1", 3)], folder / "mean")
print(read_arrays(folder / "mean")["weights"].tolist())
"""


def test_copies_are_put_together_where_there_is_numpy_and_nothing_else(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", BLOCKED + FORKED, str(tmp_path), "numpy"]
    said = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert (said.stdout, said.returncode) == ("1 1\n[0.75, 0.75, 0.75]\n", 0), said.stderr


def test_it_works_where_nothing_but_python_is_installed(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-c", BLOCKED, str(tmp_path)], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert (said.stdout, said.returncode) == ("1 1\n", 0), said.stderr
