"""What a job of several workers says when they do not fit together, or cannot find each other."""

from __future__ import annotations

import dataclasses
import functools
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from keras_strom import errors
from keras_strom.job.network import NetworkConfig
from keras_strom.relay.training_relay import TrainingMaster, TrainingWorker
from tests.support.two_workers import Ended, launch

pytestmark = pytest.mark.jobs

SCRIPT = Path(__file__).parents[1] / "support" / "scripts" / "bad_input.py"
# Nobody answers for as long as this.
QUICK = NetworkConfig(failure_timeout=0.3)


def run(case: str) -> Ended:
    """A job of two real workers."""
    return launch(SCRIPT, case)


def last_words(case: str) -> list[str]:
    """The last line of each of two real workers."""
    done = run(case)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [[x for x in done.stdout.splitlines() if x.startswith(f"[{r}] ")] for r in range(2)]
    return [of_rank[-1] for of_rank in lines]


# ------------------------------------------------------------------ workers that do not fit


def test_different_models_are_named_on_both_workers() -> None:
    for words in last_words("models"):
        assert "Refused: worker " in words
        # 9 and 13 parameters, and 8 values of where the training starts.
        for part in ("worker 0", "worker 1", "17 shared values", "21 shared values"):
            assert part in words
        assert "build the same model on every worker" in words


def test_different_trained_variables_are_refused_on_both_workers() -> None:
    for words in last_words("frozen on one"):
        assert re.search(r"Refused: worker \d trains other variables than worker \d, or by", words)
        assert "build and compile the same model on every worker" in words


def test_different_optimizers_are_refused_on_both_workers() -> None:
    for words in last_words("optimizers"):
        for part in ("worker 0", "worker 1", "optimizer=SGD", "optimizer=Adam"):
            assert part in words
        assert "give every worker the same options" in words


@pytest.mark.parametrize(
    ("case", "named"),
    [
        ("losses", ["loss=mean_squared_error", "loss=mean_absolute_error"]),
        ("metrics", ["metrics=mean_absolute_error"]),  # On the other worker none at all.
    ],
)
def test_different_losses_and_metrics_are_refused_on_both_workers(
    case: str, named: list[str]
) -> None:
    for words in last_words(case):
        for part in ("Refused: worker ", "worker 0", "worker 1", *named):
            assert part in words
        assert "give every worker the same options" in words


def test_different_options_are_named_on_both_workers() -> None:
    for words in last_words("options"):
        for part in ("worker 0", "worker 1", "update_scale=sum", "update_scale=mean"):
            assert part in words
        assert "give every worker the same options" in words


@pytest.mark.parametrize("case", ["methods", "a method on one"])
def test_different_methods_are_named_on_both_workers(case: str) -> None:
    other = "method=SparkNet(steps=5)" if case == "methods" else "update_scale=auto"
    for words in last_words(case):
        for part in ("worker 0", "worker 1", "method=MPCA(phases=1, alpha=0.05", other):
            assert part in words
        assert "give every worker the same options" in words


def test_a_model_that_is_too_small_for_its_method_is_refused_on_both_workers() -> None:
    for words in last_words("too small for a method"):
        assert "9 trained elements; MPCA(phases=3) needs 48" in words
        assert "take fewer phases" in words


def test_a_worker_without_data_says_so_and_ends_the_others() -> None:
    done = run("one_row")
    assert done.returncode == 1
    headline, *rest = done.stderr.splitlines()
    assert headline.startswith(f"keras-strom: worker 1 on {socket.gethostname()} failed: ")
    assert "UnsupportedModel: worker 1 of 2 has no training data" in headline
    assert headline.endswith("fewer workers")
    assert rest == ["Its output above has the traceback."]
    # The other fails with it, and has time to say so or has not.
    assert 1 <= done.stdout.count("Traceback") <= 2
    assert "generation.py" not in done.stdout  # None of our own insides.


# ------------------------------------------------------------------ what a script gets wrong

MISUSES = {
    "compiled in scope": r"UnsupportedModel: 'sequential\w*' was created outside strategy\.scope",
    "second strategy": r"StromError: worker \d has a StromStrategy already; make one a process",
    "train_on_batch": r"UnsupportedModel: .*must call strategy\.begin\(\)",
    "train_on_batch again": r"UnsupportedModel: a custom training loop .*strategy\.begin\(\)",
    "misspelt": r"TypeError: \S*fit\(\) got an unexpected keyword argument 'epoch'",
    "no data": r"(UnsupportedModel|FitFailed): .*worker 1 of 2 has no training data",
    "no batch of a generator": r"(UnsupportedModel|FitFailed): .*worker 1 of 2 has no training",
    "no batch of a PyDataset": r"(UnsupportedModel|FitFailed): .*worker 1 of 2 has no training",
    "outside run": r"UnsupportedModel: .*outside strategy\.run.*call strategy\.run",
    "created late": r"UnsupportedModel: .*created after the training had begun; create all models",
    "fit in a loop": r"StromError: .*call strategy\.synchronize\(\) before fit",
    "after an error": r"(Refused: |FitFailed: .*)worker \d's model differs .* build the same model",
    "shapes": r"Refused: .*build the same model on every worker",
}


@functools.cache
def misuses() -> list[dict[str, str]]:
    """What each of two workers says to every misuse, by its name."""
    done = run("misuse")
    assert done.returncode == 0, done.stdout + done.stderr
    said: list[dict[str, str]] = [{}, {}]
    for line in done.stdout.splitlines():
        rank, _, words = line.partition(" ")
        about, _, error = words.partition(": ")
        said[int(rank.strip("[]"))][about] = error
    return said


@pytest.mark.parametrize("about", MISUSES)
def test_a_misuse_is_refused_on_every_worker_with_a_remedy(about: str) -> None:
    for words in misuses():
        assert re.search(MISUSES[about], words[about])


def test_a_model_of_the_workers_own_trains_beside_the_shared_ones() -> None:
    for words in misuses():
        assert "own" not in words


# ------------------------------------------------------------------ joining


@pytest.fixture(scope="module")
def master() -> Any:
    with TrainingMaster(workers=2, host="127.0.0.1", network=QUICK) as running:
        yield running


def join(of: TrainingMaster, **changes: Any) -> TrainingWorker:
    options: dict[str, Any] = {"rank": 0, "size": 2, "network": QUICK, "master": of.address}
    options |= changes
    return TrainingWorker(options.pop("credentials", of.credentials), **options)


@pytest.mark.parametrize("changed", [{"secret": b"x" * 32}, {"job_id": b"x" * 16}], ids=str)
def test_a_wrong_secret_is_told_from_silence(
    master: TrainingMaster, changed: dict[str, bytes]
) -> None:
    credentials = dataclasses.replace(master.credentials, **changed)
    with pytest.raises(errors.SecretRejected, match=r"worker 0 .* secret.*own job") as raised:
        join(master, credentials=credentials)
    assert str(master.address[1]) in str(raised.value)
    assert "x" * 16 not in str(raised.value)


def test_a_master_that_is_not_there_is_named_with_what_to_check(master: TrainingMaster) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        address = silent.getsockname()
        with pytest.raises(
            errors.Unreachable, match=r"worker 1 hears nothing .* is UDP \d+ open inbound"
        ) as e:
            join(master, rank=1, master=address)
    assert f"127.0.0.1:{address[1]}" in str(e.value)
    assert "or does the way drop packets of 1228 bytes, as a tunnel may?" in str(e.value)


def test_a_name_that_leads_nowhere_is_an_address_error(master: TrainingMaster) -> None:
    with pytest.raises(errors.AddressError, match=r"no-such-host\.invalid"):
        join(master, master=("no-such-host.invalid", 9))


def test_another_number_of_workers_is_refused(master: TrainingMaster) -> None:
    with pytest.raises(errors.Refused, match="for 3 workers, the master for 2"):
        join(master, size=3)


def test_different_staleness_is_refused_with_both_values(master: TrainingMaster) -> None:
    first = join(master, rank=0, max_staleness=None)
    try:
        with pytest.raises(errors.Refused, match=r"worker 1 .*=0 .*worker 0 .*None"):
            join(master, rank=1, max_staleness=0)
        with pytest.raises(errors.Refused, match="rank 0 is already taken"):
            join(master, rank=0)
    finally:
        first.close()


def test_a_port_in_use_is_named_on_either_side(master: TrainingMaster) -> None:
    port = master.address[1]
    with pytest.raises(errors.AddressError, match=f"{port} is in use.*another port"):
        TrainingMaster(workers=2, host="127.0.0.1", network=NetworkConfig(port=port))
    with pytest.raises(errors.AddressError, match=f"{port} is in use.*another port"):
        join(master, network=NetworkConfig(port=port - 1))
