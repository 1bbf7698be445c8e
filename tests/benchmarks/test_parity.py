"""`make bench-parity`: its workers are the strategy's, and what it has measured is kept."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks import parity, parity_cluster, parity_kept, report
from benchmarks.parity_cluster import Exchange, Outcome, Training, train
from benchmarks.parity_kept import KeptOutcomes
from benchmarks.parity_tasks import TASKS, Data, Sharing, Task, dense_stack
from keras_strom.sharing.threshold import AdaptiveThreshold, FixedThreshold
from keras_strom.strategy.strategy import StromStrategy

ROWS = 8
ROUNDS = 6
_RANDOM = np.random.default_rng(5)
_X = _RANDOM.normal(size=(2 * ROWS * ROUNDS, 6)).astype(np.float32)
_Y = _RANDOM.integers(0, 3, len(_X)).astype(np.int32)
DATA = Data(_X, _Y, _X[:ROWS], _Y[:ROWS])
_OUTCOME = Outcome(figure=80.0, raw=300.0, coded=900.0, rounds=10)
SMALL = Task("small", "small", functools.partial(dense_stack, 6, 8, 3), lambda: DATA, ROWS, len(_X))


def _sharing(local_steps: int, local_apply: str = "full") -> Sharing:
    return Sharing(
        local_apply=local_apply,
        threshold=FixedThreshold(1e-3),
        residual_clipping=None,
        warmup_steps=0,
        local_steps=local_steps,
    )


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The parameters that a training is judged by."""
    values: list[np.ndarray] = []

    def judge(self: Any, flat: np.ndarray, data: Data) -> float:
        values.append(flat)
        return 0.0

    monkeypatch.setattr(parity_cluster.Learner, "judge", judge)
    return values


@pytest.mark.parametrize("local_apply", ["encoded", "full"])
@pytest.mark.parametrize("local_steps", [1, 4])
def test_one_worker_trains_as_the_strategy_does(
    local_steps: int,
    local_apply: str,
    monkeypatch: pytest.MonkeyPatch,
    judged: list[np.ndarray],
) -> None:
    sharing = _sharing(local_steps, local_apply)
    task = dataclasses.replace(SMALL, tuned=sharing, examples=ROWS * ROUNDS)
    monkeypatch.setitem(TASKS, "small", task)
    outcome = train(Training("small", Exchange.TUNED, 1, 1, seed=3))

    keras.utils.set_random_seed(3)
    strategy = StromStrategy(**sharing.options(), always_encode=True)
    with strategy.scope():
        model = SMALL.build()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(task.learning_rate), loss)
    order = np.random.default_rng([3, 0]).permutation(len(_X))[: ROWS * ROUNDS]
    model.fit(_X[order], _Y[order], batch_size=ROWS, shuffle=False, verbose=0)
    weights = np.concatenate([np.ravel(w) for w in model.get_weights()])
    np.testing.assert_allclose(judged[0], weights, atol=1e-6)
    assert strategy.last_report is not None
    messages = strategy.last_report.messages
    assert messages == (6 if local_steps == 1 else 2)
    sent = strategy.last_report.density * weights.size * messages
    assert outcome.raw == pytest.approx(ROUNDS * weights.size / sent)


def test_workers_end_on_the_same_values_whatever_they_send(
    monkeypatch: pytest.MonkeyPatch, judged: list[np.ndarray]
) -> None:
    made: list[parity_cluster.Worker] = []
    make = parity_cluster._worker

    def note(*arguments: Any) -> parity_cluster.Worker:
        made.append(make(*arguments))
        return made[-1]

    monkeypatch.setattr(parity_cluster, "_worker", note)
    for local_steps, delay, local_apply in ((1, 1, "encoded"), (4, 3, "encoded"), (4, 3, "full")):
        task = dataclasses.replace(SMALL, tuned=_sharing(local_steps, local_apply))
        monkeypatch.setitem(TASKS, "small", task)
        made.clear()
        outcome = train(Training("small", Exchange.TUNED, 2, delay, seed=1))
        assert outcome.rounds == ROUNDS
        np.testing.assert_allclose(made[0].values, made[1].values, atol=1e-6)


def test_a_run_that_is_cut_off_leaves_the_figures_of_whole_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chosen = [parity.Setting(TASKS[name], 2, 1, seeds=1) for name in ("mlp", "cnn")]

    def cut_off(trainings: list[Training]) -> Iterator[tuple[Training, Outcome]]:
        for training in trainings:
            if training.task == "cnn":
                raise KeyboardInterrupt
            yield training, _OUTCOME

    monkeypatch.setattr(parity_kept, "train_all", cut_off)
    result = report.Report("parity", "of a test", tmp_path)
    kept = KeptOutcomes(tmp_path / "kept.jsonl", resume=False)
    with pytest.raises(KeyboardInterrupt):
        parity.Parity(result, kept, share=1.0).train(chosen)
    targets = [target["name"] for target in json.loads(result.path.read_text())["targets"]]
    assert targets == ["accuracy_gap_mlp_2", "accuracy_over_nothing_mlp_2", "compression_mlp_2"]


def test_tuned_options_have_tables_of_their_own_and_no_targets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def train_all(trainings: list[Training]) -> Iterator[tuple[Training, Outcome]]:
        for training in trainings:
            yield training, _OUTCOME

    monkeypatch.setattr(parity_kept, "train_all", train_all)
    result = report.Report("parity", "of a test", tmp_path)
    bench = parity.Parity(result, KeptOutcomes(tmp_path / "kept.jsonl", resume=False), share=1.0)
    setting = parity.Setting(TASKS["teacher"], 4, 1, seeds=2)
    bench.train([setting])
    targets = len(result.targets)
    bench.train_tuned([setting])
    assert len(result.targets) == targets
    tuned = [row for row in result.rows if row["group"].startswith("Tuned: ")]
    assert [row["name"] for row in tuned] == ["shared, tuned", "behind dense asynchronous"]
    assert tuned[0]["options"] == str(TASKS["teacher"].tuned)


def test_the_targets_are_those_of_the_defaults() -> None:
    parameters = inspect.signature(StromStrategy.__init__).parameters
    options = Sharing().options()
    assert options == {name: parameters[name].default for name in options}


def test_many_workers_and_the_one_beside_them_have_as_many_examples() -> None:
    many = [setting for setting in parity.settings(full=False) if setting.times > 1]
    assert {setting.workers for setting in many} == {64}
    for setting in many:
        assert {t.share for t in setting.trainings(share=0.5)} == {0.5 * setting.times}


def test_many_workers_share_whole_updates_at_the_default_scale(judged: list[np.ndarray]) -> None:
    learner = parity_cluster.Learner(SMALL)
    few, many = (parity_cluster.DenseWorker(learner, workers) for workers in (16, 64))
    batch = tf.constant(_X[:ROWS]), tf.constant(_Y[:ROWS])
    np.testing.assert_array_equal(0.25 * few.step(0, *batch), many.step(0, *batch))


def test_whole_updates_come_as_one_sum_of_all_others(judged: list[np.ndarray]) -> None:
    workers = [parity_cluster.Worker(parity_cluster.Learner(SMALL)) for _ in range(3)]
    start = workers[0].values.copy()
    updates = [np.full(start.size, 2.0**place, np.float32) for place in range(3)]
    parity_cluster._deliver(workers, list(updates), due=1)
    for worker, others in zip(workers, (6.0, 5.0, 3.0), strict=True):
        worker.receive(1)
        np.testing.assert_allclose(worker.values - worker._learner.start, others, atol=1e-5)


def test_a_run_that_is_resumed_trains_only_what_has_not_been_trained_alike(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trained: list[Training] = []

    def note(trainings: list[Training]) -> Iterator[tuple[Training, Outcome]]:
        trained.extend(trainings)
        for training in trainings:
            yield training, _OUTCOME

    monkeypatch.setattr(parity_kept, "train_all", note)
    path = tmp_path / "kept.jsonl"
    monkeypatch.setitem(TASKS, "small", dataclasses.replace(SMALL, tuned=_sharing(local_steps=1)))
    several = [Training("small", exchange, 2, 1, seed=0) for exchange in Exchange]
    assert dict(KeptOutcomes(path, resume=False).train_all(several)).keys() == set(several)
    # Only a worker that shares by them depends on the task's own options.
    monkeypatch.setitem(TASKS, "small", dataclasses.replace(SMALL, tuned=_sharing(local_steps=4)))
    trained.clear()
    again = dict(KeptOutcomes(path, resume=True).train_all(several))
    assert again == dict.fromkeys(several, _OUTCOME)
    assert [training.exchange for training in trained] == [Exchange.TUNED]
    trained.clear()
    dict(KeptOutcomes(path, resume=False).train_all(several))
    assert trained == several


def test_a_row_tells_which_options_are_not_the_defaults() -> None:
    assert str(Sharing()) == "all defaults"
    sharing = Sharing(threshold=AdaptiveThreshold(max_density=1e-3), local_steps=8)
    assert str(sharing) == "threshold=AdaptiveThreshold(max_density=0.001), local_steps=8"
