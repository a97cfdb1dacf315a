"""Hostlists and number ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.backends.slurm.errors import SlurmParseError
from slurmsched.backends.slurm.hostlist import expand_hostlist, expand_numbers, fold_hostlist

NAMES = st.from_regex(r"[a-z]{1,3}-?(?:[0-9]{1,4}(?:-[a-z]{1,2}|x)?)?", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("v100-[1-2,5],k80-1", ["v100-1", "v100-2", "v100-5", "k80-1"], id="ranges and single names"),
        pytest.param("n[08-11]", ["n08", "n09", "n10", "n11"], id="zeros in front are kept"),
        pytest.param("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"], id="two brackets"),
        pytest.param("n[1-2]-ib", ["n1-ib", "n2-ib"], id="a name that goes on behind the bracket"),
        pytest.param("login", ["login"], id="no number at all"),
        pytest.param("(null)", [], id="Slurm's nothing"),
    ],
)
def test_a_hostlist_stands_for_its_names(text: str, names: list[str]) -> None:
    assert list(expand_hostlist(text)) == names


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("n[1-99999999]", id="far too many nodes"),
        pytest.param("a[1-999]b[1-999]", id="too many by multiplication"),
        pytest.param("n[1-2", id="a bracket that is never closed"),
        pytest.param("n1-2]", id="a bracket that was never opened"),
        pytest.param("n[5-2]", id="a range that runs backwards"),
        pytest.param("n[1-2],,n3", id="an empty name"),
        pytest.param("n[a-b]", id="letters in a range"),
    ],
)
def test_a_hostlist_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(SlurmParseError):
        expand_hostlist(text)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        pytest.param(["n3", "n1", "n2", "n7"], "n[1-3,7]", id="sorted and folded"),
        pytest.param(["n08", "n09", "n10"], "n[08-10]", id="ten follows 09"),
        pytest.param(["n9", "n10"], "n[9-10]", id="without zeros the widths differ"),
        pytest.param(["k80-1", "login", "v100-1"], "k80-1,login,v100-1", id="nothing to fold"),
    ],
)
def test_names_are_folded_as_slurm_does_it(names: list[str], text: str) -> None:
    assert fold_hostlist(names) == text


@given(st.sets(NAMES, max_size=30))
def test_folding_loses_no_name_and_invents_none(names: set[str]) -> None:
    assert set(expand_hostlist(fold_hostlist(names))) == names


@given(st.text(alphabet="n1,[]-:9(", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        names = expand_hostlist(text)
    except SlurmParseError:
        return
    assert all(isinstance(name, str) and name for name in names)


def test_ranges_with_steps_are_counted_out() -> None:
    assert expand_numbers("0-10:5,3") == (0, 5, 10, 3)
