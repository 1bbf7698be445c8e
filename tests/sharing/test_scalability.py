"""`keras-strom scalability`: arithmetic with known answers, and figures measured here."""

from __future__ import annotations

import pathlib

import pytest

from keras_strom import cli, errors, relay
from keras_strom.scalability import WIRE_OVERHEAD, StepCost, draw, measure, measure_service, predict

FREE = StepCost(iteration=0.1, encode=1e-12, apply=1e-12, message_bytes=1e-6, service=1e-12)


def _cost(**changed: float) -> StepCost:
    values = {name: getattr(FREE, name) for name in FREE.__dataclass_fields__}
    return StepCost(**{**values, **changed})


def test_what_costs_nothing_scales_perfectly() -> None:
    row = predict(FREE, nodes=8, workers_per_node=4)
    assert row.workers == 32
    assert row.ratio == pytest.approx(32)
    assert row.efficiency == pytest.approx(1)
    assert row.limit == "computing"


def test_one_worker_is_itself() -> None:
    assert predict(_cost(encode=9.0), nodes=1).ratio == 1


def test_every_worker_adds_the_messages_of_all_others() -> None:
    row = predict(_cost(encode=0.01, apply=0.002), nodes=11)
    assert row.step == pytest.approx(0.1 + 0.01 + 10 * 0.002)
    assert row.ratio == pytest.approx(11 * 0.1 / 0.13)


def test_a_star_is_limited_by_its_master_and_a_tree_is_not() -> None:
    cost = _cost(message_bytes=100_000)
    star = predict(cost, nodes=100, link=1e9, topology="plain")
    assert star.limit == "relay's link"
    assert star.step == pytest.approx(100 * 99 * 800_000 * WIRE_OVERHEAD / 1e9)
    tree = predict(cost, nodes=100, link=1e9, topology="mesh")
    assert tree.step == pytest.approx(100 * 8 * 800_000 * WIRE_OVERHEAD / 1e9)
    assert predict(cost, nodes=100, link=1e9) == tree
    assert predict(cost, nodes=32).step == predict(cost, nodes=32, topology="plain").step


def test_the_relaying_thread_may_be_the_limit() -> None:
    row = predict(_cost(service=1e-4), nodes=64, topology="plain")
    assert row.limit == "relay's thread"
    assert row.step == pytest.approx(64 * 64 * 1e-4)


@pytest.mark.parametrize("arguments", [{"nodes": 0}, {"nodes": 2, "link": 0.0}, {"nodes": 1.5}])
def test_what_makes_no_sense_is_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(errors.InvalidOption):
        predict(FREE, **arguments)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidOption):
        _cost(encode=-1.0)


def test_costs_are_measured_on_this_machine() -> None:
    cost = measure(iteration=0.05, parameters=200_000, density=1e-2)
    assert 1500 < cost.message_bytes < 4000  # 2000 entries of about ten bits
    assert cost.encode < 1
    assert cost.apply < 1
    assert cost.service < 1


def test_a_message_too_long_for_the_relay_is_measured_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def submit(worker: relay.Worker, data: bytes) -> None:
        sent.append(len(data))
        original(worker, data)

    sent: list[int] = []
    original = relay.Worker.submit
    monkeypatch.setattr(relay.Worker, "submit", submit)
    assert measure_service(3 * relay.MAX_MESSAGE_BYTES) > 0
    assert set(sent) == {relay.MAX_MESSAGE_BYTES}
    assert sum(sent) < 100 << 20  # Nobody takes them meanwhile.


def test_the_command_shows_a_table_and_draws(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "scalability.svg"
    costs = ["--encode", "1e-3", "--apply", "1e-4", "--message-bytes", "3e4", "--service", "1e-5"]
    arguments = ["scalability", "--iteration", "0.1", "--nodes", "12", *costs]
    assert cli.main([*arguments, "--picture", str(picture)]) == 0
    shown = capsys.readouterr().out
    assert "computing" in shown
    assert [line.split()[1] for line in shown.splitlines() if "ms" not in line and "%" in line] == [
        "1",
        "2",
        "4",
        "8",
        "12",
    ]
    assert picture.read_text().startswith("<?xml")


@pytest.mark.parametrize(("name", "words"), [("a.txt", "not supported"), ("no/a.svg", "No such")])
def test_a_picture_that_cannot_be_drawn_is_refused_in_words(
    name: str, words: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(errors.InvalidOption, match=f"{name} cannot be drawn: .*{words}"):
        draw([predict(_cost(), nodes=1)], str(tmp_path / name))


def test_the_command_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["scalability", "--iteration", "0.1"]) == 2
    assert "--parameters is needed" in capsys.readouterr().err
