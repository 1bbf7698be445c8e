"""What a worker that joins late takes over, in one process: a stand-in for the connection."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_strom import StromStrategy, errors
from keras_strom._native.node import StartInfo
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.recovery.donation import Donation, install, optimizers_of
from keras_strom.recovery.packed_arrays import pack
from keras_strom.recovery.resume import DataPosition, Fit, ResumableData, Start, place_after
from keras_strom.recovery.takeover import donate_if_asked, take_over
from keras_strom.sharing.constraints import Projection
from keras_strom.sharing.model_state import moving_averages
from keras_strom.strategy.generation import Generation, Sharing

ARRAYS = {
    "optimizer 0/0": np.array(7, np.int64),
    "state/0": np.arange(6, dtype=np.float32).reshape(2, 3),
    "state/1": np.zeros((0, 4), np.uint32),
}


# ------------------------------------------------------------------ the bytes


@pytest.mark.parametrize("per_epoch", [None, 20])
def test_a_donation_survives_its_way(per_epoch: int | None) -> None:
    sent = Donation(DataPosition(3, 17), (1e-3,), ARRAYS, per_epoch)
    taken = Donation.from_bytes(sent.to_bytes())
    assert (taken.place, taken.threshold) == (sent.place, sent.threshold)
    assert taken.per_epoch == per_epoch
    assert set(taken.arrays) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert taken.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(taken.arrays[name], array)


@pytest.mark.parametrize("cut", [0, 3, 15, 40, -1])
def test_bytes_that_are_no_donation_are_refused(cut: int) -> None:
    data = Donation(DataPosition(0, 0), (), ARRAYS).to_bytes()
    with pytest.raises(errors.CorruptMessage, match="cannot be read"):
        Donation.from_bytes(data[:cut])
    for damaged in (data + b"x", b"x" + data[1:]):
        with pytest.raises(errors.CorruptMessage, match="cannot be read: it"):
            Donation.from_bytes(damaged)


def test_something_else_that_was_packed_is_no_donation() -> None:
    with pytest.raises(errors.CorruptMessage, match="it is a recipe, not a keras-strom donation"):
        Donation.from_bytes(pack("recipe", 2, {}, {}))


def test_a_donation_of_another_version_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as other:
        other.setattr("keras_strom.recovery.donation._VERSION", 99)
        data = Donation(DataPosition(0, 0), (), {}).to_bytes()
    with pytest.raises(errors.Refused, match=r"version 99.*same keras-strom"):
        Donation.from_bytes(data)


def test_state_of_another_shape_is_refused_and_nothing_is_assigned() -> None:
    variables = {"state/0": tf.Variable(tf.ones([2, 3])), "state/1": tf.Variable(tf.ones([2]))}
    arrays = {"state/0": np.zeros((2, 3), np.float32), "state/1": np.zeros(5, np.float32)}
    with pytest.raises(errors.Refused, match=r"state/1 has shape \(5,\) there and \(2,\) here"):
        install(variables, arrays)
    assert variables["state/0"].numpy().all()


def test_optimizers_that_a_model_keeps_in_lists_and_dicts_are_its_own() -> None:
    rules = [keras.optimizers.SGD(0.1) for _ in range(4)]
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(rules[0], "mse")
    model.one, model.by_name, model.several = rules[1], {"d": rules[2]}, [rules[3], rules[1]]
    assert [id(one) for one in optimizers_of(model)] == [id(one) for one in rules]


def test_a_part_of_an_optimizer_that_trains_nothing_has_no_moving_averages() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1, use_ema=True), "mse")
    assert not hasattr(model.optimizer, "_model_variables_moving_average")  # As of such a part.
    assert moving_averages([model]) == []


# ------------------------------------------------------------------ the place


@pytest.mark.parametrize(
    ("batches", "per_epoch", "place"),
    [
        (0, 10, DataPosition(2, 0)),
        (0, None, DataPosition(2, 0)),
        (9, 10, DataPosition(2, 9)),
        (10, 10, DataPosition(3, 0)),
        (25, 10, DataPosition(4, 5)),
        (25, None, None),
    ],
)
def test_the_place_follows_from_the_batches(
    batches: int, per_epoch: int | None, place: DataPosition | None
) -> None:
    assert place_after(batches, first_epoch=2, per_epoch=per_epoch) == place


def test_one_epoch_leaves_out_what_a_predecessor_has_trained() -> None:
    data = ResumableData(tf.data.Dataset.range(6), lambda dataset: dataset)
    assert [int(v) for v in data] == [0, 1, 2, 3, 4, 5]
    data.go_on(epochs=0, batches=4, per_epoch=6)
    assert [int(v) for v in data] == [4, 5]
    assert [int(v) for v in data] == [0, 1, 2, 3, 4, 5]


class Rows(keras.utils.PyDataset):  # type: ignore[misc]
    """Six batches; counts the epochs of which it hears."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.begun = self.ended = 0

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return np.full((8, 3), index, np.float32), np.zeros(8, np.float32)

    def on_epoch_begin(self) -> None:
        self.begun += 1

    def on_epoch_end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("kind", ["dataset", "endless", "PyDataset", "PyDataset with threads"])
def test_fit_goes_on_in_the_middle_of_an_epoch(
    kind: str, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr("keras_strom.strategy.one_fit.Generation", LateGeneration)
    monkeypatch.setattr("keras_strom.strategy.one_fit.take_over", lambda *_: DataPosition(1, 4))
    with StromStrategy(always_encode=True).scope():
        model = build()
    sharing = model.distribute_strategy._sharing
    strategy = model.distribute_strategy
    strategy._environment = sharing.environment = ClusterEnvironment(attempt=1)
    rows = tf.data.Dataset.range(48).map(lambda i: (tf.fill([3], float(i)), 0.0))
    data: Any = rows.batch(8).repeat() if kind == "endless" else rows.batch(8)
    if kind.startswith("PyDataset"):
        data = Rows(workers=2) if "threads" in kind else Rows()
    per_epoch = 6 if kind == "endless" else None
    seen = Batches()
    history = model.fit(data, epochs=3, steps_per_epoch=per_epoch, verbose=0, callbacks=[seen])
    assert seen.counts == {1: 2, 2: 6}
    assert history.epoch == [1, 2]
    if isinstance(data, Rows):
        assert (data.begun, data.ended) == (2, 2 + 1)  # Keras ends one that it reads to build.
    assert not [w for w in recwarn if "ran out of data" in str(w.message)]


class LateGeneration(Generation):
    """One that the others have begun before."""

    def start(self, initial_epoch: int | None = None) -> None:
        super().start(initial_epoch)
        self.late = True


class Batches(keras.callbacks.Callback):
    """Counts the batches of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[int, int] = {}

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self.counts[epoch] = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.counts[self._epoch] += 1


def test_fit_that_comes_after_the_end_trains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class EndedGeneration(Generation):
        def start(self, initial_epoch: int | None = None) -> None:
            super().start(initial_epoch)
            self.ended = True
            self._values_at_end = np.full(self._sharing.space.size, 0.5, np.float32)
            self._state_at_end = np.append(np.arange(8.0), 0.0)

    monkeypatch.setattr("keras_strom.strategy.one_fit.Generation", EndedGeneration)
    with StromStrategy(always_encode=True).scope():
        model = build()
    seen = Batches()
    history = model.fit(np.ones((8, 3)), np.ones(8), epochs=3, verbose=0, callbacks=[seen])
    assert seen.counts == {}
    assert history.history == {}
    assert all((v.numpy() == 0.5).all() for v in model.trainable_variables)
    moved = [v.numpy() for v in model.non_trainable_variables if "moving" in v.path]
    np.testing.assert_array_equal(np.concatenate(moved), np.arange(8.0))


# ------------------------------------------------------------------ from one strategy to another


def build(accumulated: int | None = None) -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(4),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1),
        ]
    )
    optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps=accumulated)
    model.compile(optimizer, "mse")
    return model


@dataclasses.dataclass
class Connection:
    """Stands for a worker's connection to the master."""

    start_info: StartInfo = dataclasses.field(default_factory=StartInfo)
    donated: bytes | None = None
    given: bytes | None = None

    def donation_wanted(self) -> bool:
        return True

    def donate(self, data: bytes) -> None:
        self.donated = data

    def take_donation(self, timeout: float) -> bytes | None:
        return self.given


def shares(model: keras.Model, connection: Connection) -> Sharing:
    """What the model's strategy shares, with a connection."""
    sharing: Sharing = model.distribute_strategy._sharing
    return dataclasses.replace(
        sharing,
        environment=ClusterEnvironment(rank=0, size=2, attempt=1),
        worker=connection,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(("ended", "is_known"), [(1, True), (2, True), (3, False)])
def test_the_state_at_the_end_is_that_of_the_same_fit(ended: int, is_known: bool) -> None:
    with StromStrategy(always_encode=True).scope():
        model = build()
    state = np.arange(9.0)
    connection = Connection(given=np.uint64(ended).tobytes() + state.tobytes())
    sharing = dataclasses.replace(shares(model, connection), fits=1)
    generation = Generation(dataclasses.replace(sharing, worker=None), [model])
    found = generation._ask_state_at_end(connection)  # type: ignore[arg-type]
    np.testing.assert_array_equal(found, state if is_known else np.zeros(0))


def test_a_joiner_has_the_donors_state_and_its_predecessors_place() -> None:
    models = []
    for _ in range(2):
        with StromStrategy(always_encode=True).scope():
            models.append(build())
    donor, joiner = models
    x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
    donor.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0)

    gives = Connection()
    giver = shares(donor, gives)
    fit = Fit(1, donor, per_epoch=5)
    donate_if_asked(giver, fit, DataPosition(3, 0), Projection(donor, giver.space))
    takes = Connection(StartInfo(late=True, resume_iteration=106), given=gives.donated)
    sharing = shares(joiner, takes)
    place = take_over(sharing, Fit(1, joiner, per_epoch=5), Start(1, 100))

    assert place == DataPosition(2, 2)
    assert sharing.step.steps == 107
    assert joiner.optimizer.iterations.numpy() == 7  # The donor has trained 10 batches by there.
    (_, *own), (_, *others) = joiner.optimizer.variables, donor.optimizer.variables
    for mine, theirs in zip(own, others, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
    moved = [v for v in joiner.non_trainable_variables if "moving" in v.path]
    assert moved
    for mine, theirs in zip(
        joiner.non_trainable_variables, donor.non_trainable_variables, strict=True
    ):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
    own = donor.distribute_strategy._sharing.step.threshold_state
    assert sharing.step.threshold_state == own
    donor.optimizer.learning_rate = 0.25 * float(donor.optimizer.learning_rate)
    rates = sharing.step.rate_history
    assert rates is not None
    assert float(rates.change([donor.optimizer]).left) == 1  # It knows its own model's.
    joiner.optimizer.learning_rate = donor.optimizer.learning_rate
    assert float(rates.change([joiner.optimizer]).left) == pytest.approx(0.25)
    # Parameters are the master's to give.
    assert (joiner.get_weights()[0] != donor.get_weights()[0]).any()


def take_over_from(
    donor: keras.Model,
    at: DataPosition,
    resume_iteration: int,
    per_epoch: int | None,
    donors_per_epoch: int | None = None,
) -> keras.Model:
    """A model with which a worker has come for one that had made so many steps, from 0."""
    with StromStrategy(always_encode=True).scope():
        joiner = build(donor.optimizer.gradient_accumulation_steps)
    gives = Connection()
    giver = shares(donor, gives)
    fit = Fit(1, donor, per_epoch=donors_per_epoch)
    donate_if_asked(giver, fit, at, Projection(donor, giver.space))
    takes = Connection(StartInfo(late=True, resume_iteration=resume_iteration), given=gives.donated)
    take_over(shares(joiner, takes), Fit(1, joiner, per_epoch=per_epoch), Start())
    return joiner


def trained(accumulated: int | None, batches: int, epochs: int = 1) -> keras.Model:
    """A model of which epochs of so many batches have been trained."""
    with StromStrategy(always_encode=True).scope():
        model = build(accumulated)
    x = np.ones((batches, 3), np.float32)
    model.fit(x, x[:, :1], batch_size=1, epochs=epochs, verbose=0)
    return model


@pytest.mark.parametrize(
    ("at", "place", "steps"),
    [(DataPosition(3, 3), DataPosition(3, 3), 111), (DataPosition(3, 6), DataPosition(4, 0), 112)],
    ids=["in the epoch", "beyond its own batches of it"],
)
def test_one_without_a_predecessor_goes_on_where_the_donor_is(
    at: DataPosition, place: DataPosition, steps: int
) -> None:
    donor = trained(None, 5)
    with StromStrategy(always_encode=True).scope():
        joiner = build()
    gives = Connection()
    giver = shares(donor, gives)
    donate_if_asked(giver, Fit(1, donor, per_epoch=7), at, Projection(donor, giver.space))
    takes = Connection(StartInfo(late=True, resume_iteration=-1), given=gives.donated)
    sharing = shares(joiner, takes)
    assert take_over(sharing, Fit(1, joiner, per_epoch=4), Start(1, 100)) == place
    assert sharing.step.steps == steps


@pytest.mark.parametrize(
    ("resumed", "per_epoch", "counts"),
    [
        (3, 10, 4),
        (6, 10, 7),  # It was ahead of the donor.
        (3, None, 0),  # It begins the donor's epoch.
        (-1, 10, 5),  # It is where the donor is.
    ],
)
def test_a_joiners_optimizer_counts_as_at_its_own_place(
    resumed: int, per_epoch: int | None, counts: int
) -> None:
    joiner = take_over_from(trained(None, 5), DataPosition(0, 5), resumed, per_epoch)
    assert joiner.optimizer.iterations.numpy() == counts


@pytest.mark.parametrize(
    ("donors", "resumed", "own", "counts"),
    [
        (6, 6, 5, 7),  # In its second epoch, at (1, 2).
        (6, 11, 5, 12),  # In its third, as the donor.
        (6, -1, 5, 10),  # It begins its third, where the donor is.
        (None, 6, 6, 7),  # The donor's are taken to be as many.
        (6, 6, None, 12),  # It begins the donor's third epoch.
        (None, 6, None, 12),
    ],
)
def test_a_joiner_with_other_epochs_than_the_donor_counts_as_at_its_own_place(
    donors: int | None, resumed: int, own: int | None, counts: int
) -> None:
    donor = trained(None, batches=6, epochs=2)
    joiner = take_over_from(donor, DataPosition(2, 0), resumed, own, donors)
    assert joiner.optimizer.iterations.numpy() == counts


def test_a_joiner_has_nothing_of_gradients_that_the_donor_has_accumulated() -> None:
    donor = trained(accumulated=3, batches=7)
    assert any(gradients.numpy().any() for gradients in donor.optimizer._accumulated_gradients)
    joiner = take_over_from(donor, DataPosition(0, 7), resume_iteration=0, per_epoch=9)
    assert joiner.optimizer._iterations.numpy() == 3
    assert not any(g.numpy().any() for g in joiner.optimizer._accumulated_gradients)


def test_where_all_have_one_state_the_count_of_steps_is_part_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    donor = trained(None, 5)
    step = type(donor.distribute_strategy._sharing.step)
    monkeypatch.setattr(step, "has_one_state", property(lambda _: True))
    joiner = take_over_from(donor, DataPosition(0, 5), resume_iteration=2, per_epoch=10)
    assert joiner.optimizer.iterations.numpy() == 5


def test_without_a_donor_a_joiner_starts_afresh_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with StromStrategy(always_encode=True).scope():
        model = build()
    sharing = shares(model, Connection(StartInfo(late=True, resume_iteration=11)))
    assert take_over(sharing, Fit(1, model, per_epoch=None), Start()) == DataPosition(0, 0)
    assert "fresh optimizer" in caplog.text
