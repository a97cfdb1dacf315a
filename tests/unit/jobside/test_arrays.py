"""Numpy's own way into the files of tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from hypothesis.extra.numpy import array_shapes, arrays, boolean_dtypes, floating_dtypes, integer_dtypes

from slurmsched.jobside.errors import TensorError
from slurmsched.jobside.tensors import read_arrays, write_arrays

ANY = some.one_of(floating_dtypes(endianness="<", sizes=(16, 32, 64)), integer_dtypes(endianness="<"), boolean_dtypes())
ARRAYS = some.dictionaries(some.text(min_size=1, max_size=9), arrays(ANY, array_shapes(min_dims=0, min_side=0)))


@given(ARRAYS.filter(lambda held: "__metadata__" not in held))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, held: dict[str, np.ndarray]) -> None:  # type: ignore[type-arg]  # of any type
    file = tmp_path_factory.getbasetemp() / "arrays"
    write_arrays(file, held)
    found = read_arrays(file)
    assert set(found) == set(held)
    for name, array in held.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()
        assert found[name].flags.writeable


def test_the_library_reads_it(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy", reason="safetensors is not here")
    turned = np.arange(6.0).reshape(2, 3).T
    write_arrays(tmp_path / "file", {"turned": turned})
    np.testing.assert_array_equal(library.load_file(tmp_path / "file")["turned"], turned)


def test_what_has_no_name_in_the_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TensorError, match="z is of complex128"):
        write_arrays(tmp_path / "file", {"z": np.zeros(2, complex)})
