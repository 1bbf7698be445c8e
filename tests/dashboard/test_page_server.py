"""The page's server over HTTP: what it gives to whom, and that it changes nothing."""

import contextlib
import json
import os
import re
import select
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Coroutine, Iterator
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("prometheus_client")

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from keras_strom import cli, errors
from keras_strom.dashboard import reading, running_jobs, server
from keras_strom.dashboard.dashboard import Dashboard
from keras_strom.dashboard.page_address import PageAddress, is_address
from keras_strom.dashboard.watch import watch
from keras_strom.dashboard.watching import Watching
from tests.support import simulated_job

WORKERS = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[Dashboard]:
    """A job of simulated workers behind its page."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("XDG_RUNTIME_DIR", raising=False)
        patch.setenv("XDG_STATE_HOME", str(folder))
        with Dashboard(PageAddress(), "train.py", WORKERS, lambda _: None) as dashboard:
            simulated_job.begin(dashboard, WORKERS)
            simulated_job.tell(dashboard, WORKERS, 20, slow=3)
            dashboard.checkpoint("/data/checkpoint-20")
            yield dashboard


@pytest.fixture(autouse=True)
def _state_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))


def get(url: str, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    request = urllib.request.Request(url, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read(), dict(error.headers)


def root(page: Dashboard) -> str:
    return page.url.rsplit("/", 2)[0]


def test_the_page_and_all_that_it_needs_come_with_the_token(page: Dashboard) -> None:
    status, body, headers = get(page.url)
    assert status == 200
    assert headers["Content-Type"].startswith("text/html")
    for name in ("page.css", "uPlot.min.css", "uPlot.min.js", "charts.js", "tree.js", "page.js"):
        assert name in body.decode()
        assert get(page.url + name)[0] == 200
    assert "MIT" in get(page.url + "uPlot.LICENSE")[1].decode()


def test_the_page_asks_for_nothing_elsewhere(page: Dashboard) -> None:
    for name in ("", "page.css", "charts.js", "tree.js", "page.js"):
        text = get(page.url + name)[1].decode().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text
        assert "https://" not in text
    assert "default-src 'none'" in get(page.url)[2]["Content-Security-Policy"]


@pytest.mark.parametrize("path", ["/", "/state.json", "/metrics", "/page.js", "/WRONG/", "/%ff/"])
def test_without_the_token_there_is_nothing(page: Dashboard, path: str) -> None:
    for method in ("GET", "POST", "OPTIONS", "DELETE"):
        status, body, headers = get(root(page) + path, method)
        assert (status, body) == (404, b"404: Not Found")
        assert set(headers) <= {"Content-Type", "Content-Length", "Date", "Server", "Connection"}
        assert headers["Server"] == "HTTP"


def test_a_wrong_token_of_any_kind_gives_nothing(page: Dashboard) -> None:
    token = page.url.rsplit("/", 2)[1]
    for wrong in (token[:-1], token + "x", token.swapcase(), "x" * len(token)):
        assert get(f"{root(page)}/{wrong}/state.json")[0] == 404
    assert get(f"{root(page)}/metrics", Authorization="Bearer wrong")[0] == 404
    assert get(f"{page.url}../state.json")[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_the_page_is_read_only(page: Dashboard, method: str) -> None:
    assert get(page.url, method)[0] == 405
    assert get(page.url + "state.json", method)[0] == 405


def test_connections_of_strangers_are_bounded(page: Dashboard) -> None:
    port = int(root(page).rpartition(":")[2])
    ends = time.monotonic() + 60
    with contextlib.ExitStack() as stack:
        strangers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(80)
        ]
        poller = select.poll()
        for one in strangers:
            poller.register(one, select.POLLIN)
        while len(poller.poll(100)) < len(strangers) - 64 and time.monotonic() < ends:
            pass
        ended = {fd for fd, _ in poller.poll(0)}
        assert ended == {one.fileno() for one in strangers[:16]}
        assert get(page.url)[0] == 200


def test_no_other_files_can_be_read(page: Dashboard) -> None:
    for path in ("server.py", "../server.py", "..%2fserver.py", "%2e%2e/server.py", "index.html"):
        assert get(page.url + path)[0] == 404


def test_the_state_is_that_of_the_job(page: Dashboard) -> None:
    state = json.loads(get(page.url + "state.json")[1])
    assert state["name"] == "train.py"
    assert len(state["workers"]) == WORKERS
    assert [one["rank"] for one in state["slow"]] == [3]
    assert state["checkpoints"][0][1] == "/data/checkpoint-20"


def test_a_metric_over_time_is_read_of_some_workers_or_as_the_spread(page: Dashboard) -> None:
    of_two = json.loads(
        get(page.url + "series.json?metric=loss&ranks=0,7,999,-1,x," + "9" * 5000)[1]
    )
    assert len(of_two["values"]) == 2
    assert len(json.loads(get(page.url + "series.json?metric=loss")[1])["values"]) == 3


def test_metrics_are_open_metrics(page: Dashboard) -> None:
    token = page.url.rsplit("/", 2)[1]
    status, body, headers = get(f"{root(page)}/metrics", Authorization=f"Bearer {token}")
    assert status == 200
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert body == get(page.url + "metrics")[1] or b"# EOF" in body
    families = {one.name: one for one in text_string_to_metric_families(body.decode())}
    steps = families["keras_strom_worker_step_seconds"].samples
    assert len(steps) == WORKERS
    expected = simulated_job.record(7, WORKERS, 20).step_seconds
    (seventh,) = [one.value for one in steps if one.labels == {"worker": "7"}]
    assert seventh == pytest.approx(expected, rel=1e-4)
    losses = families["keras_strom_worker_metric"].samples
    assert {one.labels["metric"] for one in losses} == {"loss", "accuracy", "val_loss"}


def test_grafanas_dashboard_asks_for_metrics_that_there_are(
    page: Dashboard, repository: Path
) -> None:
    text = (repository / "examples" / "grafana_dashboard.json").read_text()
    wanted = set(re.findall(r"\bkeras_strom_\w+(?=\{|, )", text))
    body = get(page.url + "metrics")[1].decode()
    there = {sample.name for one in text_string_to_metric_families(body) for sample in one.samples}
    assert len(wanted) > 12
    assert wanted <= there


def test_the_page_is_on_the_loopback_interface_alone(page: Dashboard) -> None:
    assert page.url.startswith("http://127.0.0.1:")
    port = int(root(page).rpartition(":")[2])
    rows = Path("/proc/net/tcp").read_text().split("\n")[1:-1]
    listening = [row.split()[1] for row in rows if row.split()[3] == "0A"]
    assert [one for one in listening if one.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


def test_who_reads_the_page_is_told_how_the_job_has_ended() -> None:
    told = []

    def read() -> None:
        while not told or not told[-1]:
            told.append(reading.read_state(dashboard.url)["ended"])

    dashboard = Dashboard(PageAddress(), "train.py", 2, lambda _: None)
    reader = threading.Thread(target=read, daemon=True)

    def fail() -> None:
        with dashboard:
            reading.read_state(dashboard.url)
            reader.start()
            raise errors.WorkerFailed(1, "b", "Traceback: it has failed", ())

    with pytest.raises(errors.WorkerFailed):
        fail()
    reader.join(60)
    assert told[-1].startswith("the job has failed: ")


def test_ctrl_c_in_the_last_look_closes_the_page_all_the_same(folder: Path) -> None:
    dashboard = Dashboard(PageAddress(), "train.py", 2, lambda _: None)

    def interrupted(_: float) -> bool:
        raise KeyboardInterrupt

    def end() -> None:
        with dashboard:
            dashboard.look()
            dashboard._last_look.wait = interrupted  # type: ignore[method-assign]

    with pytest.raises(KeyboardInterrupt):
        end()
    with pytest.raises(errors.Unreachable):
        reading.read_state(dashboard.url)
    assert dashboard.url not in [job.url for job in running_jobs.running_jobs()]


def test_a_page_that_fails_costs_no_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(waiting: Coroutine[object, object, bool], seconds: float) -> None:
        waiting.close()
        raise OSError("too many open files")

    monkeypatch.setattr(server, "_SWEEP_SECONDS", 0.01)
    with server.PageServer(PageAddress(), "token", dict, dict, dict) as page:
        monkeypatch.setattr(server.asyncio, "wait_for", fail)
        page._thread.join(30)
        assert not page._thread.is_alive()
    assert "too many open files" in caplog.text


def test_no_port_is_open_that_was_not_asked_for() -> None:
    with watch(None, "train.py", 2, pytest.fail) as watching:
        assert type(watching) is Watching
        assert not watching.wants_records


def test_a_port_in_use_is_refused_in_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(errors.AddressError, match=f"127.0.0.1:{port}.*another port"),
            Dashboard(PageAddress(port=port), "train.py", 2, pytest.fail),
        ):
            pass


def test_a_host_that_no_resolver_takes_is_refused_in_words() -> None:
    with pytest.raises(errors.AddressError, match=r"cannot be served at TCP a\.\.b:80"):
        PageAddress("a..b", 80).check()


def test_a_missing_library_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with (
        pytest.raises(errors.InvalidOption, match=r"pip install 'keras-strom\[dashboard\]'"),
        Dashboard(PageAddress(), "train.py", 2, pytest.fail),
    ):
        pass


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no socket here takes both")
def test_every_interface_is_those_of_both_versions_of_ip() -> None:
    with Dashboard(PageAddress("::"), "train.py", 2, lambda _: None) as dashboard:
        port, path = dashboard.url.split("://")[1].split(":", 1)[1].split("/", 1)
        assert get(f"http://127.0.0.1:{port}/{path}")[0] == 200
        assert get(f"http://[::1]:{port}/{path}")[0] == 200


@pytest.mark.parametrize(
    ("option", "address"),
    [
        (True, PageAddress("127.0.0.1", 0)),
        (8265, PageAddress("127.0.0.1", 8265)),
        ("8265", PageAddress("127.0.0.1", 8265)),
        ("0.0.0.0:8265", PageAddress("0.0.0.0", 8265)),
        ("[::1]:80", PageAddress("::1", 80)),
        (False, None),
        (None, None),
    ],
)
def test_a_page_is_asked_for_by_a_word_a_port_or_an_address(
    option: object, address: PageAddress | None
) -> None:
    assert PageAddress.of(option) == address


@pytest.mark.parametrize("option", [-1, 65536, "yes", "host", "host:port", 1.5, "::1:80"])
def test_an_address_that_makes_no_sense_is_refused(option: object) -> None:
    with pytest.raises(errors.InvalidOption, match="dashboard="):
        PageAddress.of(option)


@pytest.mark.parametrize(
    ("words", "dashboard", "script"),
    [
        (["--dashboard", "train.py"], "0", "train.py"),
        (["--dashboard", "8265", "train.py"], "8265", "train.py"),
        (["--dashboard", "0.0.0.0:1", "train.py"], "0.0.0.0:1", "train.py"),
        (["--dashboard=8265", "-np", "2", "train.py"], "8265", "train.py"),
        (["-np", "2", "--dashboard", "train.py", "--dashboard", "x"], "0", "train.py"),
        (["train.py", "--dashboard", "8"], None, "train.py"),
    ],
)
def test_the_flag_takes_an_address_or_none(
    words: list[str], dashboard: str | None, script: str
) -> None:
    options = cli._parser().parse_args(["run", *words])
    assert (options.dashboard, options.script) == (dashboard, script)
    assert is_address("8265")


@pytest.mark.parametrize(
    ("host", "example"),
    [("[::]", "[::]:8265"), ("::", "[::]:8265"), ("0.0.0.0", "0.0.0.0:8265")],
)
@pytest.mark.parametrize("command", [["run", "-np", "2"], ["master", "-np", "2"]])
def test_an_address_that_lacks_its_port_is_named(
    command: list[str], host: str, example: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not taken for a script."""
    with pytest.raises(SystemExit):
        cli.main([*command, "--dashboard", host, "train.py"])
    assert (
        f"--dashboard {host}: a port is missing, as in --dashboard {example}"
        in capsys.readouterr().err
    )


# ------------------------------------------------------------------ in the terminal


def test_the_terminal_finds_the_page_of_the_job_that_runs(
    page: Dashboard, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reading.find_page(None) == page.url
    assert cli.main(["status"]) == 0
    shown = capsys.readouterr().out
    assert "40 training" in shown
    assert "computes slowly" in shown


def test_the_status_is_also_json(page: Dashboard, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", page.url.rstrip("/"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "train.py"


def test_the_file_that_tells_of_a_page_is_private(page: Dashboard, folder: Path) -> None:
    (file,) = (folder / "keras-strom" / "jobs").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert page.url in file.read_text()


def test_jobs_of_a_service_and_of_a_session_are_found(
    page: Dashboard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with running_jobs.announced("http://127.0.0.1:1/TOKEN/", "other.py"):
        assert list((tmp_path / "keras-strom" / "jobs").iterdir())
        found = [job.name for job in running_jobs.running_jobs()]
    assert found == ["train.py", "other.py"]


def test_where_the_first_folder_cannot_be_written_the_job_is_found_by_the_next(
    page: Dashboard,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "keras-strom").touch()  # As a folder of another user's, which `su` leaves named.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with running_jobs.announced("http://127.0.0.1:1/TOKEN/", "other.py"):
        assert [job.name for job in running_jobs.running_jobs()] == ["train.py", "other.py"]
    assert [job.name for job in running_jobs.running_jobs()] == ["train.py"]
    assert not caplog.records


def test_a_user_without_a_home_has_no_folder_of_that_name_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "~")  # What Python makes of ~ where there is neither.
    monkeypatch.chdir(tmp_path)
    with running_jobs.announced("http://127.0.0.1:1/TOKEN/", "train.py"):
        assert running_jobs.running_jobs() == []
    assert list(tmp_path.iterdir()) == []
    assert "will not find this job by itself: this user has no home" in caplog.text


@pytest.mark.parametrize("of_another", [{"pid": 2**22 + 1}, {"process_start": 1}])
def test_the_file_of_a_job_that_was_killed_is_removed(
    page: Dashboard, folder: Path, of_another: dict[str, int]
) -> None:
    jobs = folder / "keras-strom" / "jobs"
    (alive,) = jobs.iterdir()
    dead = jobs / "dead.json"
    dead.write_text(json.dumps({**json.loads(alive.read_text()), **of_another}))
    assert [job.url for job in running_jobs.running_jobs()] == [page.url]
    assert not dead.exists()


@contextlib.contextmanager
def _left_by_another_machine(folder: Path) -> Iterator[tuple[Path, Path]]:
    """The files of this machine's job and of a later one of a machine with the same home."""
    jobs = folder / "keras-strom" / "jobs"
    (alive,) = jobs.iterdir()
    left = jobs / "left.json"
    job = json.loads(alive.read_text())
    later = {"host": "b", "url": "http://b/", "started": job["started"] + 1}
    left.write_text(json.dumps({**job, **later}))
    try:
        yield alive, left
    finally:
        left.unlink()


def test_a_job_of_this_machine_comes_before_what_another_one_has_left(
    page: Dashboard, folder: Path
) -> None:
    """They share a home, and a job that was killed there leaves its file."""
    with _left_by_another_machine(folder):
        assert reading.find_page(None) == page.url
        assert reading.find_page(str(os.getpid())) == page.url


def test_what_a_job_killed_on_another_machine_has_left_is_no_running_job(
    page: Dashboard, folder: Path
) -> None:
    """A job touches its file while it runs."""
    with _left_by_another_machine(folder) as (alive, left):
        assert [job.host for job in running_jobs.running_jobs()] == [socket.gethostname(), "b"]
        hour_ago = time.time() - 3600
        os.utime(left, (hour_ago, hour_ago))
        assert [job.url for job in running_jobs.running_jobs()] == [page.url]
        os.utime(alive, (hour_ago, hour_ago))
        page._say_that_it_runs()
        assert alive.stat().st_mtime > hour_ago + 3000


def test_where_no_job_runs_the_terminal_says_how_to_start_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert cli.main(["status"]) == 2
    assert "keras-strom run --dashboard" in capsys.readouterr().err


def test_no_proxy_sees_the_token(page: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.setblocking(False)
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        monkeypatch.delenv("no_proxy", raising=False)
        assert reading.read_state(page.url)["name"] == "train.py"
        with pytest.raises(BlockingIOError):
            proxy.accept()


@contextlib.contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """A port that gives these answers, one a connection, and then no more."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            for one in answers:
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(one)
            server.shutdown(socket.SHUT_RDWR)
            server.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/SECRET/"
        thread.join(60)


def http(state: object) -> bytes:
    body = json.dumps(state).encode()
    return b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-OpenSSH_9\r\n", b"", http([1]), http({"ended": ""}), http("x")]
)
def test_what_is_no_jobs_page_is_said_in_words(
    answer: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(answer) as url:
        assert cli.main(["status", url]) == 2
    words = capsys.readouterr().err
    assert "no page of a job" in words
    assert "SECRET" not in words


def test_top_says_how_the_job_has_ended(
    page: Dashboard, capsys: pytest.CaptureFixture[str]
) -> None:
    state = page.snapshot()
    ended = {**state, "ended": "the job has failed: worker 1"}
    with answering(http(state), http(state), b"", http(ended)) as url:
        assert cli.main(["top", url, "--interval", "0.1"]) == 0
    assert capsys.readouterr().out.endswith("\nthe job has failed: worker 1\n")


def test_top_says_that_a_page_has_gone_whose_job_has_not_ended(
    page: Dashboard, capsys: pytest.CaptureFixture[str]
) -> None:
    state = page.snapshot()
    with answering(http(state), http(state)) as url:
        assert cli.main(["top", url, "--interval", "0.1"]) == 2
    said = capsys.readouterr()
    assert "no page of a job" in said.err
    assert "the job has ended" not in said.out


def test_a_page_that_is_gone_is_said_without_its_token(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    assert cli.main(["top", f"http://127.0.0.1:{port}/SECRET/"]) == 2
    words = capsys.readouterr().err
    assert "has the job ended" in words
    assert "SECRET" not in words
