"""The hosts of a Slurm job, from a stand-in for the variables that it sets."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_strom import cli, errors
from keras_strom.runner import slurm
from keras_strom.runner.hosts import Host


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10],login", ["n08", "n09", "n10", "login"]),
        ("n[1,3-4]x", ["n1x", "n3x", "n4x"]),
        ("r[1-2]n[0-1]", ["r1n0", "r1n1", "r2n0", "r2n1"]),
    ],
)
def test_a_node_list_is_expanded(nodes: str, names: list[str]) -> None:
    assert slurm.expand(nodes) == names


@pytest.mark.parametrize(
    "nodes", ["", "a,", "n[1", "n1]", "n[]", "n[3-1]", "n[a-b]", "n[1-9999999]"]
)
def test_a_node_list_that_makes_no_sense_is_refused(nodes: str) -> None:
    with pytest.raises(errors.EnvironmentInvalid, match=r"SLURM_JOB_NODELIST=.* give --hosts"):
        slurm.expand(nodes)


@pytest.mark.parametrize("text", ["", "x", "0", "2(x4)", "2(x2)", "2,2,2,2", "2(x99999999999)"])
def test_tasks_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(errors.EnvironmentInvalid, match="SLURM_TASKS_PER_NODE="):
        slurm.tasks_per_node(text, 3)


ranges_of_numbers = st.lists(
    st.tuples(st.integers(0, 2000), st.integers(0, 20)), min_size=1, max_size=5
)
prefixes = st.from_regex(r"[a-z][a-z0-9-]{0,6}[a-z-]", fullmatch=True)


@pytest.mark.fuzz
@given(
    prefixes, st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 20)), min_size=1, max_size=5)
)
def test_what_is_folded_is_unfolded(prefix: str, ranges: list[tuple[int, int]]) -> None:
    folded = ",".join(f"{first:04d}-{first + more:04d}" for first, more in ranges)
    numbers = [n for first, more in ranges for n in range(first, first + more + 1)]
    assert slurm.expand(f"{prefix}[{folded}]") == [f"{prefix}{n:04d}" for n in numbers]


@pytest.mark.fuzz
@given(st.text("ab19[],-", max_size=20))
def test_any_text_is_expanded_or_refused(text: str) -> None:
    with contextlib.suppress(errors.EnvironmentInvalid):
        assert all(slurm.expand(text))


def test_slurm_itself_is_asked_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "scontrol"
    program.write_text('#!/bin/sh\n[ "$*" = "show hostnames n[1-2]" ] && printf "one\\ntwo\\n"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert slurm.hosts("n[1-2]", "3(x2)") == (Host("one", 3), Host("two", 3))


def test_in_an_allocation_a_run_takes_its_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\necho Connection refused >&2\nexit 255\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[7-8]")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "2,1")
    assert cli.main(["run", __file__]) == 2
    said = capsys.readouterr().err
    assert "node7: no ssh server listens there" in said
    assert "node8: no ssh server listens there" in said
