"""Files of tensors, and their mean: exact where it can be, and never held as a whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from slurmsched.jobside.consolidation import CopyState, average
from slurmsched.jobside.errors import TensorError
from slurmsched.jobside.tensors import decode_floats, encode_floats, open_tensor_file
from tests.unit.jobside.scripts import CHECKOUT

TYPES = {"<f8": "F64", "<f4": "F32", "<f2": "F16", "<i8": "I64", "|b1": "BOOL"}


def written(path: Path, tensors: Mapping[str, NDArray[np.generic]]) -> Path:
    """A file in the safetensors form."""
    header, at = {}, 0
    for name, tensor in tensors.items():
        end = at + tensor.nbytes
        header[name] = {"dtype": TYPES[tensor.dtype.str], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(t.tobytes() for t in tensors.values()))
    return path


def read(path: Path, name: str, dtype: str) -> NDArray[np.generic]:
    file = open_tensor_file(path)
    (tensor,) = (tensor for tensor in file.tensors if tensor.name == name)
    return np.frombuffer(b"".join(file.chunks(tensor, 16)), dtype).reshape(tensor.shape)


def model(scale: float, batches: int = 0) -> dict[str, NDArray[np.generic]]:
    random = np.random.default_rng(1)
    return {
        "weight": (random.standard_normal((3, 5)) * scale).astype("<f4"),
        "half": np.full(3, scale, "<f2"),
        "exact": np.array(scale, "<f8"),
        "batches": np.array([batches], "<i8"),
        "empty": np.zeros((0, 4), "<f4"),
    }


def test_the_mean_is_weighted_by_steps_and_counts_come_from_who_did_most(tmp_path: Path) -> None:
    copies = [
        CopyState(written(tmp_path / "a", model(1.0, 10)), 10),
        CopyState(written(tmp_path / "b", model(3.0, 30)), 30),
        CopyState(written(tmp_path / "c", model(100.0, 99)), 0),
    ]
    average(copies, tmp_path / "mean")
    np.testing.assert_allclose(read(tmp_path / "mean", "weight", "<f4"), model(2.5)["weight"], rtol=1e-6)
    assert read(tmp_path / "mean", "half", "<f2").tolist() == [2.5] * 3
    assert read(tmp_path / "mean", "exact", "<f8") == 2.5
    assert read(tmp_path / "mean", "batches", "<i8").tolist() == [30]


def test_the_mean_of_equal_copies_is_each_of_them_to_the_last_bit(tmp_path: Path) -> None:
    paths = [written(tmp_path / name, model(0.1)) for name in "abc"]
    average([CopyState(path, steps) for path, steps in zip(paths, (3, 7, 11), strict=True)], tmp_path / "mean")
    assert (tmp_path / "mean").read_bytes() == paths[0].read_bytes()


def test_the_safetensors_library_reads_what_is_written(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy", reason="safetensors is not here")
    for name, scale in (("a", 1.0), ("b", 2.0)):
        library.save_file(model(scale), tmp_path / name, metadata={"format": "np"})
    average([CopyState(tmp_path / "a", 1), CopyState(tmp_path / "b", 1)], tmp_path / "mean")
    found = library.load_file(tmp_path / "mean")
    np.testing.assert_allclose(found["weight"], model(1.5)["weight"], rtol=1e-6)


@pytest.mark.parametrize("number", [0.0, 1.0, -2.5, 1 / 3, 3.3e38, 1e-40, float("inf"), float("nan")])
def test_the_short_floats_of_networks_are_rounded_as_torch_does(number: float) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not here: pip install -e '.[torch]'")
    mine = encode_floats(np.array([number]), "BF16")
    theirs = torch.tensor([number], dtype=torch.float64).to(torch.float32).to(torch.bfloat16)
    np.testing.assert_array_equal(decode_floats(mine, "BF16"), theirs.to(torch.float64).numpy())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        pytest.param(b"", "no safetensors file", id="nothing"),
        pytest.param(b"\xff" * 40, "no safetensors file", id="garbage"),
        pytest.param((2).to_bytes(8, "little") + b"[]", "no table", id="a list"),
        pytest.param(b'\x3b' + b"\0" * 7 + b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}     1234',
                     "gaps or end too early", id="cut off"),
        pytest.param(b'\x37' + b"\0" * 7 + b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,9]}} ' + b"1" * 9,
                     "not the size", id="a size that its shape has not"),
    ],
)  # fmt: skip
def test_what_is_no_file_of_tensors_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(TensorError, match=said):
        open_tensor_file(tmp_path / "file")


def test_copies_of_different_models_are_refused(tmp_path: Path) -> None:
    one = written(tmp_path / "a", model(1.0))
    other = written(tmp_path / "b", {**model(1.0), "weight": np.zeros((3, 6), "<f4")})
    with pytest.raises(TensorError, match="one model for all"):
        average([CopyState(one, 1), CopyState(other, 1)], tmp_path / "mean")
    with pytest.raises(TensorError, match="nothing to average"):
        average([CopyState(one, 0)], tmp_path / "mean")


LEAN = """
import sys
from pathlib import Path
from slurmsched.jobside.consolidation import CopyState, average
from slurmsched.jobside.environment import peak_memory
folder = Path(sys.argv[1])
before = peak_memory()
average([CopyState(folder / name, 1) for name in "abc"], folder / "mean")
print(peak_memory() - before)
"""


def test_a_model_of_a_quarter_gigabyte_takes_some_mebibytes(tmp_path: Path) -> None:
    header = json.dumps({"weight": {"dtype": "F32", "shape": [1 << 26], "data_offsets": [0, 1 << 28]}}).encode()
    for name in "abc":
        (tmp_path / name).write_bytes(len(header).to_bytes(8, "little") + header)
        os.truncate(tmp_path / name, 8 + len(header) + (1 << 28))
    said = subprocess.run(
        [sys.executable, "-c", LEAN, str(tmp_path)], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert 0 < int(said.stdout) < 16, "MiB of memory for three files of 256 MiB"
