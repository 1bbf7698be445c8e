"""Jobs whose master passes on the sum of several updates: nothing is missing, nothing comes twice.

Each job runs tests/support/scripts/merging.py in processes of this machine over a real relay.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.update_accounts import Account, lost
from keras_strom import NetworkConfig, errors
from keras_strom._native import master_node
from keras_strom.job.credentials import Credentials
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.method import AllReduce
from keras_strom.relay import Master, new_secret
from keras_strom.relay.training_relay import TrainingMaster, TrainingWorker
from keras_strom.runner.launcher import Job
from keras_strom.runner.launcher import launch as launch_job
from keras_strom.runner.work import Script
from keras_strom.sharing.options import check_network_beside
from tests.support.refused_workers import expect_refused_in_order
from tests.support.scripts import merging
from tests.support.two_workers import launch

# Of a significand in [1, 2): core/codec/threshold_grid.h.
GRID = (1.0, 1.1875, 1.4140625, 1.6796875)
DEADLINE = 60.0


def train(folder: Path, workers: int, *options: str, **threshold: Any) -> list[dict[str, Any]]:
    """What each rank has written."""
    done = launch(
        Path(merging.__file__),
        str(folder),
        json.dumps(threshold),
        options=options,
        workers=workers,
        env={"TF_NUM_INTRAOP_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(workers)]


def off_grid(result: dict[str, Any]) -> set[float]:
    """The thresholds of its steps that are not on the grid."""
    seen = set(result["thresholds"])
    return {tau for tau in seen if 2 * np.frexp(np.float32(tau))[0] not in GRID}


def assert_that_all_have_all(results: list[dict[str, Any]]) -> None:
    assert len({result["hash"] for result in results}) == 1
    assert all(result["difference"] < 1e-5 for result in results)
    accounts = [Account(**result["account"]) for result in results]
    assert all(account.sent > 0 for account in accounts)
    assert lost(accounts, accounts[0].held) == 0
    of_all = sum(account.sent for account in accounts)
    for account, result in zip(accounts, results, strict=True):
        assert account.added == account.due == of_all - account.sent
        assert result["taken"] == result["applied"] == account.added


@pytest.mark.jobs
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("workers", "options", "threshold"),
    [
        (3, ["--merging", "on"], {}),
        (5, ["--topology", "mesh", "--max-children", "2"], {"per_variable": True}),
    ],
    ids=["star", "tree"],
)
def test_workers_whose_updates_are_merged_end_with_all_of_them(
    tmp_path: Path, workers: int, options: list[str], threshold: dict[str, Any]
) -> None:
    results = train(tmp_path, workers, *options, **threshold)
    assert_that_all_have_all(results)
    for result in results:
        assert result["merges"], result
        assert result["publications"] > 0
        assert off_grid(result) == set()
    assert max(result["depth"] for result in results) >= (2 if workers == 5 else 1)


@pytest.mark.jobs
@pytest.mark.timeout(900)
def test_without_merging_thresholds_are_those_of_the_algorithm(tmp_path: Path) -> None:
    results = train(tmp_path, 2, "--topology", "mesh", "--merging", "off")
    assert_that_all_have_all(results)
    for result in results:
        assert not result["merges"], result
        assert result["publications"] == 0
        assert off_grid(result)


@pytest.mark.parametrize(
    ("network", "merges"),
    [
        (NetworkConfig(), False),
        (NetworkConfig(merging="on"), True),
        (NetworkConfig(topology="mesh"), True),
        (NetworkConfig(topology="mesh", merging="off"), False),
    ],
    ids=["auto", "on", "tree", "off"],
)
def test_master_and_workers_say_whether_updates_are_merged(
    network: NetworkConfig, merges: bool
) -> None:
    with TrainingMaster(workers=2, host="127.0.0.1", network=network) as master:
        workers = [
            TrainingWorker(
                master.credentials, master=master.address, rank=rank, size=2, network=network
            )
            for rank in range(2)
        ]

        def start(worker: TrainingWorker, seed: Any) -> None:
            worker.start(1, 8, 5, "same", seed, timeout=DEADLINE)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(start, workers, (np.zeros(8, np.float32), None)))
        for one in (master, *workers):
            assert one.status()["node"]["merges"] is merges
        for worker in workers:
            worker.close()


def test_merging_is_refused_where_nothing_can_be_merged() -> None:
    network = NetworkConfig(merging="on")
    with pytest.raises(errors.InvalidOption, match='merging="on": bytes have no sum'):
        Master(new_secret(), workers=2, network=network)
    expect_refused_in_order(network, 'merging="on": max_staleness=0 has all')


def test_merging_is_refused_to_a_lone_worker(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    job = Job(work=Script(str(script)), workers=1, network=NetworkConfig(merging="on"))
    with pytest.raises(errors.InvalidOption, match='merging="on": one worker has no master'):
        launch_job(job)


def test_merging_is_refused_beside_a_joint_model_and_where_it_is_not_the_masters() -> None:
    network = NetworkConfig(merging="on")
    with pytest.raises(errors.InvalidOption, match=r"method=AllReduce.* makes no updates"):
        check_network_beside(AllReduce(), network)
    check_network_beside(AllReduce(), NetworkConfig())
    place = ClusterEnvironment(rank=1, size=2, master=("127.0.0.1", 9), credentials_path="none")
    with pytest.raises(errors.InvalidOption, match=r"option of the runner .*--merging on"):
        TrainingWorker.from_environment(place, network=network)


def test_a_scripts_own_network_does_not_hide_that_the_jobs_master_merges() -> None:
    place = ClusterEnvironment(
        rank=1,
        size=2,
        master=("127.0.0.1", 9),
        credentials_path="none",
        network=NetworkConfig(merging="on"),
    )
    with pytest.raises(errors.InvalidOption, match='merging="on": max_staleness=1 has all'):
        TrainingWorker.from_environment(place, max_staleness=1, network=NetworkConfig())


def test_the_library_refuses_a_way_of_merging_that_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(master_node, "MERGING", {"auto": 3})
    with pytest.raises(errors.StromError, match="there is no merging 3"):
        master_node.MasterNode(Credentials.new(), workers=2, bind_address="127.0.0.1")
