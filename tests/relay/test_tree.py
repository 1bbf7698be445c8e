"""Workers in a tree through a whole fit: they end with the same bits, and relay for each other.

Each job runs tests/support/scripts/tree.py in processes of this machine over a real relay.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_strom.job.worker_record import WorkerRecord
from tests.support.scripts import tree
from tests.support.scripts.lifecycle import TAU
from tests.support.two_workers import launch

pytestmark = pytest.mark.jobs


def train(folder: Path, workers: int, max_children: int) -> list[dict[str, Any]]:
    """What each rank of a mesh has written."""
    options = ["--topology", "mesh", "--max-children", str(max_children)]
    one_thread = {"TF_NUM_INTRAOP_THREADS": "1"}
    done = launch(
        Path(tree.__file__), str(folder), options=options, workers=workers, env=one_thread
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(workers)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("workers", "max_children"), [(5, 2), pytest.param(12, 3, marks=pytest.mark.slow)]
)
def test_workers_of_a_tree_end_with_the_same_bits(
    tmp_path: Path, workers: int, max_children: int
) -> None:
    results = train(tmp_path, workers, max_children)
    assert len({result["hash"] for result in results}) == 1
    assert all(result["difference"] < 1e-5 for result in results)
    # Updates are merged, and a fixed threshold is what it was for all that.
    assert all(result["threshold"] == np.float32(TAU) for result in results)
    assert all(result["node"]["merges"] for result in results)
    # Which places they have depends on who joined first, and on whether a busy machine cost
    # somebody a link; the bounds do not.
    nodes = [result["node"] for result in results]
    places = [(node["parent"], node["depth"], node["children"]) for node in nodes]
    assert all(node["children"] <= max_children for node in nodes), places
    assert max(node["depth"] for node in nodes) >= 2, places
    assert all(node["relayed_messages"] > 0 for node in nodes), places
    # What each tells the job's page of its parent is of the link to it.
    ports = {f"worker {rank}": result["port"] for rank, result in enumerate(results)}
    for result in results:
        told = WorkerRecord.parse(result["record"]).links
        peers = [int(link.peer.rpartition(":")[2]) for link in told if link.to_parent]
        parent = result["node"]["parent"]
        if parent == "the master":
            assert len(peers) == 1
            assert peers[0] not in ports.values()
        else:
            assert peers == ([] if parent == "none" else [ports[parent]]), places
