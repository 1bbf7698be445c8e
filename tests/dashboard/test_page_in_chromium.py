"""The page in a real browser: its figures are the job's, it goes on by itself, it is readable."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("prometheus_client")
pytest.importorskip("selenium")

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from keras_strom.dashboard.dashboard import Dashboard
from keras_strom.dashboard.page_address import PageAddress
from keras_strom.job.worker_record import WorkerRecord
from tests.support import simulated_job
from tests.support.browser import opened, picture, resize

pytestmark = pytest.mark.jobs

WORKERS = 9
ODD = {"slow": 3, "hungry": 5, "lossy": 6}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with opened(tmp_path_factory.mktemp("profile")) as chromium:
        yield chromium


@pytest.fixture(autouse=True)
def _no_error_in_the_console(browser: Any) -> Iterator[None]:
    resize(browser, 1280, 900)
    yield
    said = browser.get_log("browser")
    # What the last page asks for when its job has ended is answered by nobody.
    assert not [one for one in said if "ERR_CONNECTION_REFUSED" not in one["message"]]


def serve(workers: int, moments: int) -> Dashboard:
    """A job that has run for so many seconds, though nobody has waited for them."""
    dashboard = Dashboard(PageAddress(), "resnet50.py", workers, lambda _: None)
    job = dashboard._job
    job._begin -= moments
    begin = job._begin
    job.master(simulated_job.status(workers), begin)
    for rank in range(workers):
        job.started(rank, f"node-{rank // 8:03}", 0, begin)
    for moment in range(moments):
        for rank in range(workers):
            if moment + 1 == moments or workers < 100 or moment % 8 == 0:
                said = simulated_job.record(rank, workers, moment, **ODD)
                job.heard(rank, said, begin + moment)
        job.tick(begin + moment)
    return dashboard


@pytest.fixture(scope="module")
def page() -> Iterator[Dashboard]:
    with serve(WORKERS, 180) as dashboard:
        dashboard.follow(lambda: simulated_job.status(WORKERS))
        dashboard.checkpoint("/data/run/checkpoint-000179")
        yield dashboard


def until(true: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What `true` gives, once it is something."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, "it has not come"
        time.sleep(0.05)
    return found


def open_page(browser: Any, url: str) -> None:
    browser.get(url)
    until(lambda: browser.execute_script("return document.body.dataset.updates"))


def shown(browser: Any) -> list[dict[str, Any]]:
    """The table's rows that are in the page, by the columns' titles."""
    rows: list[dict[str, Any]] = browser.execute_script(
        "const names = [...document.querySelectorAll('th')].map((one) => one.textContent);"
        "const texts = (row) => [...row.children].map((cell) => cell.textContent.trim());"
        "return [...document.querySelectorAll('#rows tr:not(.spacer)')].map((row) =>"
        " Object.fromEntries(texts(row).map((text, at) => [names[at], text])));"
    )
    return rows


def test_the_figures_on_the_page_are_those_of_the_workers(browser: Any, page: Dashboard) -> None:
    for rank in range(WORKERS):
        page.heard(rank, simulated_job.record(rank, WORKERS, 179, **ODD))
    open_page(browser, page.url)
    rows = {row["worker"]: row for row in shown(browser)}
    assert list(rows) == [str(rank) for rank in range(WORKERS)]
    for rank in range(WORKERS):
        said = simulated_job.record(rank, WORKERS, 179, **ODD)
        row = rows[str(rank)]
        assert row["does"] == "training"
        assert row["epoch"] == f"{said.epoch}/{said.epochs}"
        assert row["steps"] == str(said.steps)
        assert said.step_seconds is not None
        assert float(row["step"].split()[0]) == pytest.approx(1e3 * said.step_seconds, rel=0.01)
        assert float(row["loss"]) == pytest.approx(said.logs["loss"], rel=1e-3)
    words = browser.find_element(By.ID, "slow-list").text.split("\n")
    assert [line for line in words if line in ("input", "compute", "network")] == [
        "input",
        "compute",
        "network",
    ]
    assert "checkpoint-000179" in browser.find_element(By.ID, "checkpoints").text


def test_the_page_goes_on_by_itself_when_a_worker_goes_away(browser: Any, page: Dashboard) -> None:
    open_page(browser, page.url)
    assert "away" not in browser.find_element(By.ID, "state").text
    page.away(7, "worker 7 was killed by SIGKILL")
    until(lambda: shown(browser)[7]["does"] == "away")
    assert "was killed by SIGKILL" in browser.find_element(By.ID, "events").text
    page.started(7, "node-009", 1)
    page.heard(7, simulated_job.record(7, WORKERS, 180))
    until(lambda: shown(browser)[7]["does"] == "training")


def test_a_worker_is_chosen_sorted_and_left_with_the_keyboard(
    browser: Any, page: Dashboard
) -> None:
    open_page(browser, page.url)
    press = ActionChains(browser)
    press.send_keys(Keys.TAB).perform()
    assert browser.switch_to.active_element.text == "To the workers"
    step = browser.find_element(By.XPATH, "//th/button[text()='step']")
    browser.execute_script("arguments[0].focus()", step)
    step.send_keys(Keys.ENTER)
    assert [row["worker"] for row in shown(browser)[:2]] == ["5", "3"]
    assert step.find_element(By.XPATH, "..").get_attribute("aria-sort") == "descending"
    step.send_keys(Keys.ENTER)
    step.send_keys(Keys.ENTER)  # Back to the tree's order.
    worker = browser.find_element(By.XPATH, "//td/button[text()='5']")
    browser.execute_script("arguments[0].focus()", worker)
    worker.send_keys(Keys.ENTER)
    figures = browser.find_element(By.ID, "one")
    assert figures.is_displayed()
    assert "waits for input" in figures.text
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert not figures.is_displayed()


# The colour of each element's text against the first ground below it that is not transparent.
CONTRASTS = """
const parts = (text) => text.match(/[\\d.]+/g).map(Number);
const part = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
const isClear = (colour) => colour.length > 3 && colour[3] === 0;
const groundOf = (node) => parts(getComputedStyle(node).backgroundColor);
const found = [];
for (const node of document.querySelectorAll("body *")) {
  const texts = [...node.childNodes].filter((one) => one.nodeType === 3 && one.textContent.trim());
  if (!texts.length || !node.getClientRects().length) continue;
  if (node.closest("svg, script, noscript")) continue;
  let below = node;
  while (below.parentElement && isClear(groundOf(below))) below = below.parentElement;
  const ground = isClear(groundOf(below)) ? groundOf(document.body) : groundOf(below);
  const pair = [light(parts(getComputedStyle(node).color)), light(ground)];
  const [most, least] = pair.sort((x, y) => y - x);
  found.push([(most + 0.05) / (least + 0.05), node.tagName + "." + node.className]);
}
return found;
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_all_text_stands_out_from_its_ground(browser: Any, page: Dashboard, dark: bool) -> None:
    page.away(8, "worker 8 was killed by SIGKILL")
    resize(browser, 1280, 900, dark=dark)
    open_page(browser, page.url)
    found = browser.execute_script(CONTRASTS)
    page.started(8, "node-001", 1)
    assert len(found) > 100
    assert not [one for one in found if one[0] < 4.5]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling_of_the_page(
    browser: Any, page: Dashboard, dark: bool
) -> None:
    resize(browser, 390, 844, dark=dark)
    open_page(browser, page.url)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390


def test_the_pictures_of_the_docs(
    browser: Any, page: Dashboard, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    for rank in range(WORKERS):
        page.started(rank, f"node-{rank // 8:03}", 0)
        page.heard(rank, simulated_job.record(rank, WORKERS, 180, **ODD))
    page.away(7, "worker 7 was killed by SIGKILL")
    resize(browser, 1280, 1030)
    open_page(browser, page.url)
    until(lambda: browser.execute_script("return document.querySelectorAll('canvas').length") == 2)
    from PIL import Image

    folder = request.config.getoption("pictures")
    path = Path(folder or tmp_path) / "dashboard.png"
    picture(browser, path)
    Image.open(path).quantize(128).save(path, optimize=True)
    assert path.stat().st_size > 20_000


def test_a_thousand_workers_are_in_the_page_and_few_rows(browser: Any) -> None:
    with serve(1000, 32) as page:
        page.follow(lambda: simulated_job.status(1000))
        open_page(browser, page.url)
        count = "return document.querySelectorAll(arguments[0]).length"
        assert browser.execute_script(count, "#tree circle") == 1000
        assert browser.execute_script(count, "#rows tr") < 200
        assert "1000 training" in browser.find_element(By.ID, "state").text
        browser.execute_script(
            "const box = document.getElementById('workers'); box.scrollTop = box.scrollHeight;"
        )
        last = str(browser.execute_script("return view.order.at(-1)[0].rank"))
        until(lambda: shown(browser)[-1]["worker"] == last)
        field = browser.find_element(By.ID, "filter")
        field.send_keys("517")
        until(lambda: [row["worker"] for row in shown(browser)] == ["517"])
        until(lambda: "of 1000 workers: least" in browser.find_element(By.ID, "step-words").text)
        seen = int(browser.execute_script("return document.body.dataset.updates"))
        until(lambda: int(browser.execute_script("return document.body.dataset.updates")) > seen)


TRAIN = """
    import json, os, sys, time
    import keras, keras_strom, numpy as np
    folder = sys.argv[1]
    with keras_strom.StromStrategy().scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.random.default_rng(0).random((64, 8), dtype="float32")
    me = os.path.join(folder, f"{keras_strom.rank()}.{os.getpid()}")

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.02)
        def on_epoch_end(self, epoch, logs=None):
            with open(me, "a") as file:
                print(json.dumps(logs["val_loss"]), file=file)
            if os.path.exists(os.path.join(folder, "stop")):
                self.model.stop_training = True

    y = x.sum(1)
    model.fit(x, y, batch_size=4, epochs=100000, validation_data=(x, y), verbose=0,
              callbacks=[Note()])
"""


def test_a_real_jobs_figures_and_the_death_of_a_worker_are_seen(
    browser: Any, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRAIN))
    command = [sys.executable, "-m", "keras_strom", "run", "-np", "2", "--max-failures", "1"]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "XDG_RUNTIME_DIR": ""}
    job = subprocess.Popen(
        [*command, "--dashboard", str(script), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    try:
        assert job.stdout is not None
        url = next(line for line in job.stdout if "page is" in line).split()[-1]
        open_page(browser, url)
        training = lambda: [row["does"] for row in shown(browser)] == ["training"] * 2  # noqa: E731
        until(lambda: training() and has_val_loss(browser), 200)
        check_val_loss(browser, tmp_path)
        (victim,) = [int(path.suffix[1:]) for path in tmp_path.glob("1.*")]
        os.kill(victim, signal.SIGKILL)
        until(lambda: "killed by SIGKILL" in browser.find_element(By.ID, "events").text)
        until(lambda: len(list(tmp_path.glob("1.*"))) == 2 and training(), 200)
        check_val_loss(browser, tmp_path)
        (tmp_path / "stop").touch()
        assert job.wait(120) == 0
    finally:
        job.kill()
        job.wait()


def has_val_loss(browser: Any) -> bool:
    names = browser.execute_script("return view.state.metrics")
    return "val_loss" in names


def check_val_loss(browser: Any, folder: Path) -> None:
    """What the page says of worker 0 is what its own callback has been told."""
    said = until(
        lambda: browser.execute_script(
            "return (view.workers.find((one) => one.rank === 0).logs || {}).val_loss"
        )
    )
    (own,) = folder.glob("0.*")
    values = [WorkerRecord.parse(_record(float(line))).logs["v"] for line in own.open()]
    assert said in values


def _record(value: float) -> str:
    return WorkerRecord(activity="training", logs={"v": value}).to_json()


def test_a_line_that_is_gone_without_a_word_is_said(browser: Any, page: Dashboard) -> None:
    open_page(browser, page.url)
    browser.execute_script(
        "const timeout = AbortSignal.timeout.bind(AbortSignal);"
        "AbortSignal.timeout = () => timeout(20);"
        "window.fetch = (_, { signal }) => new Promise((_, fail) => {"
        " if (signal) signal.addEventListener('abort', () => fail(signal.reason)); });"
    )
    until(lambda: "cannot be reached" in browser.find_element(By.ID, "state").text)


def test_a_finished_job_is_said_on_the_page(browser: Any) -> None:
    with serve(2, 2) as page:
        open_page(browser, page.url)
    assert json.dumps(page.snapshot()["ended"]) == '"the job has ended well"'
    until(lambda: browser.find_element(By.ID, "state").text == "the job has ended well")
