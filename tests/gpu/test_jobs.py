"""Jobs of two workers of which some are on a GPU."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest

from keras_strom import NetworkConfig
from tests.support import elastic_jobs, gpu
from tests.support.faults import Fault
from tests.support.scripts import elastic
from tests.support.two_workers import launch, results, weights

pytestmark = pytest.mark.jobs

SCRIPT = Path(gpu.__file__).with_name("scripts") / "gpu_job.py"


def trained(folder: Path, case: str, gpus: str, *options: str) -> list[list[np.ndarray]]:
    """The weights of both workers at the end, which are equal."""
    folder.mkdir()
    job = launch(SCRIPT, str(folder), case, gpus, options=options)
    assert job.returncode == 0, job.stdout[-4000:] + job.stderr[-4000:]
    assert all(worker["difference"] < 1e-5 for worker in results(folder))
    here, there = (list(worker.values()) for worker in weights(folder))
    assert all(map(np.array_equal, here, there))
    return [here, there]


def test_a_worker_on_a_gpu_and_one_on_the_cpu_end_with_the_bits_of_two_on_cpus(
    tmp_path: Path,
) -> None:
    for case in ("sync", "kernels_sync"):
        alike, _ = trained(tmp_path / f"{case}_alike", case, "")
        mixed, _ = trained(tmp_path / case, case, "1")
        # Matrix products on a card are rounded otherwise than on a CPU.
        near = functools.partial(np.allclose, atol=0.05)
        assert all(map(near if gpu.is_card() else np.array_equal, mixed, alike)), case


@pytest.fixture(scope="module")
def launches_by_the_host(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Kernels that an emulated GPU runs for a step of a "kernels" case which goes by the host."""
    folder = tmp_path_factory.mktemp("by_the_host") / "job"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_STROM_GPU_STEP", "off")
        trained(folder, "kernels", "1")
    return launches(folder)


def launches(folder: Path) -> float:
    """Of a step of worker 1's."""
    result = results(folder)[1]
    return result["launches"] / result["steps"]


@pytest.mark.parametrize("case", ["kernels", "kernels_sync", "kernels_bounded"])
def test_the_steps_of_a_job_stay_on_a_gpu(
    tmp_path: Path, request: pytest.FixtureRequest, case: str
) -> None:
    """That they stay there an emulated one tells."""
    trained(tmp_path / "job", case, "1")
    if not gpu.is_card():
        by_the_host = request.getfixturevalue("launches_by_the_host")
        assert launches(tmp_path / "job") > 1.5 * by_the_host


@pytest.mark.parametrize(
    ("case", "gpus"),
    [
        ("async", "01"),
        ("kernels", "01"),
        ("SparkNet", "1"),
        ("MPCA", "0"),
    ],
)
def test_workers_on_a_gpu_end_equal(tmp_path: Path, case: str, gpus: str) -> None:
    trained(tmp_path / "job", case, gpus)


@pytest.mark.usefixtures("emulated")
def test_a_worker_whose_gpu_is_lost_gives_way_to_another(tmp_path: Path) -> None:
    work = elastic.Job(epochs=2, hold_at=40, gpus="1", as_on_spark=True)
    ended = elastic_jobs.run(tmp_path, work, Fault(mode="gpu", rank=1, step=20))
    ended.check()
    assert "DeviceLost: worker 1's GPU has stopped working" in ended.output
    assert [result["attempt"] for result in ended.results] == [0, 1]
    fit = ended.results[1]["fits"][0]
    (epoch, first), *_ = fit["batches"]
    per_epoch = work.rows // work.batch // 2
    assert fit["iterations"][0] == (epoch + 1) * per_epoch - first  # As at its own place.
    assert "fresh optimizer" not in ended.output


@pytest.mark.usefixtures("emulated")
def test_a_job_on_gpus_that_was_killed_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    work = elastic.Job(epochs=3, pause=0.02, gpus="01")
    folder = tmp_path / "checkpoints"
    parts = elastic_jobs.run_until_killed(tmp_path, work, folder, workers=2)
    again = dataclasses.replace(work, pause=0.0, gpus="1")  # The other goes on on the CPU.
    ended = elastic_jobs.run(tmp_path, again, network=NetworkConfig(checkpoint_dir=str(folder)))
    ended.check()
    for rank, part in parts.items():
        fit = ended.results[rank]["fits"][0]
        assert fit["iterations"][0] == int(part.arrays["optimizer 0/0"])


@pytest.mark.usefixtures("emulated")
def test_a_lost_gpu_is_named_where_it_ends_the_job(tmp_path: Path) -> None:
    job = launch(SCRIPT, str(tmp_path), "lost", "1")
    assert job.returncode != 0
    assert (
        "worker 1's GPU has stopped working (EMULATED_ERROR_DEVICE_LOST" in job.stdout + job.stderr
    )
