"""The KERAS_STROM_* variables and the credentials they point to."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import keras_strom
from keras_strom import errors
from keras_strom.job.credentials import Credentials
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.job.network import NetworkConfig

COMPLETE = {
    "KERAS_STROM_RANK": "1",
    "KERAS_STROM_SIZE": "4",
    "KERAS_STROM_LOCAL_RANK": "1",
    "KERAS_STROM_LOCAL_SIZE": "2",
    "KERAS_STROM_GPUS": "own",
    "KERAS_STROM_NEEDS_GPU": "1",
    "KERAS_STROM_ATTEMPT": "3",
    "KERAS_STROM_MASTER": "[fd00::4]:40123",
    "KERAS_STROM_CREDENTIALS": "/proc/self/fd/7",
    "KERAS_STROM_NETWORK": '{"failure_timeout": 2.0, "network_mask": "10.0.0.0/8"}',
    "KERAS_STROM_IP": "10.0.0.9",
    "KERAS_STROM_JOIN_TIMEOUT": "12.5",
}


def test_an_empty_environment_is_one_worker_on_its_own() -> None:
    environment = ClusterEnvironment.from_environ({"PATH": "/bin"})
    assert environment == ClusterEnvironment()
    assert (environment.rank, environment.size, environment.master) == (0, 1, None)
    assert environment.is_chief


def test_every_variable_is_read() -> None:
    assert ClusterEnvironment.from_environ(COMPLETE) == ClusterEnvironment(
        rank=1,
        size=4,
        local_rank=1,
        local_size=2,
        gpus="own",
        needs_gpu=True,
        attempt=3,
        master=("fd00::4", 40123),
        credentials_path="/proc/self/fd/7",
        network=NetworkConfig(failure_timeout=2.0, network_mask="10.0.0.0/8"),
        ip="10.0.0.9",
        join_timeout=12.5,
    )


def test_what_is_written_is_read_back() -> None:
    environment = ClusterEnvironment.from_environ(COMPLETE)
    assert ClusterEnvironment.from_environ(environment.to_environ()) == environment


@pytest.mark.parametrize("missing", ["RANK", "SIZE", "MASTER", "CREDENTIALS"])
def test_a_partial_set_names_what_is_missing(missing: str) -> None:
    partial = {k: v for k, v in COMPLETE.items() if k != f"KERAS_STROM_{missing}"}
    with pytest.raises(errors.EnvironmentInvalid, match=f"KERAS_STROM_{missing} is not"):
        ClusterEnvironment.from_environ(partial)


def test_several_workers_need_a_master() -> None:
    with pytest.raises(errors.EnvironmentInvalid, match="KERAS_STROM_MASTER is not"):
        ClusterEnvironment.from_environ({"KERAS_STROM_RANK": "0", "KERAS_STROM_SIZE": "2"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("RANK", "one"),
        ("RANK", "-1"),
        ("RANK", "4"),
        ("SIZE", "0"),
        ("LOCAL_RANK", "2"),
        ("LOCAL_SIZE", "5"),
        ("GPUS", "2"),
        ("NEEDS_GPU", "yes"),
        ("GPU_STEP", "of"),
        ("ATTEMPT", "1.5"),
        ("MASTER", "10.0.0.1"),
        ("MASTER", "10.0.0.1:0"),
        ("NETWORK", "{"),
        ("NETWORK", "[]"),
        ("NETWORK", '{"prot": 1}'),
        ("IP", "localhost"),
        ("JOIN_TIMEOUT", "nan"),
        ("JOIN_TIMEOUT", "0"),
    ],
)
def test_an_unreadable_variable_is_named(name: str, text: str) -> None:
    with pytest.raises(errors.EnvironmentInvalid, match=f"KERAS_STROM_{name}="):
        ClusterEnvironment.from_environ({**COMPLETE, f"KERAS_STROM_{name}": text})


def test_a_misspelt_variable_is_refused() -> None:
    with pytest.raises(errors.EnvironmentInvalid, match="KERAS_STROM_RNAK"):
        ClusterEnvironment.from_environ({**COMPLETE, "KERAS_STROM_RNAK": "1"})


@pytest.mark.parametrize("service", ["KERAS_STROM", "KERAS_STROM_MASTER", "KERAS_STROM_JOB_7"])
def test_what_kubernetes_sets_for_a_service_is_no_option(service: str) -> None:
    of_service = {
        f"{service}_SERVICE_HOST": "10.96.0.12",
        f"{service}_SERVICE_PORT": "40100",
        f"{service}_SERVICE_PORT_RELAY": "40100",
        f"{service}_PORT": "udp://10.96.0.12:40100",
        f"{service}_PORT_40100_UDP": "udp://10.96.0.12:40100",
        f"{service}_PORT_40100_UDP_ADDR": "10.96.0.12",
    }
    without = ClusterEnvironment.from_environ(COMPLETE)
    assert ClusterEnvironment.from_environ({**COMPLETE, **of_service}) == without
    del of_service[f"{service}_SERVICE_HOST"]
    with pytest.raises(errors.EnvironmentInvalid, match=f"{service}_SERVICE_PORT"):
        ClusterEnvironment.from_environ({**COMPLETE, **of_service})


def test_the_top_level_functions_read_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in COMPLETE.items():
        monkeypatch.setenv(name, text)
    assert (keras_strom.rank(), keras_strom.size(), keras_strom.local_rank()) == (1, 4, 1)
    assert not keras_strom.is_chief()


def test_importing_keras_strom_loads_neither_tensorflow_nor_pyspark() -> None:
    code = (
        "import sys, keras_strom; keras_strom.NetworkConfig(); keras_strom.rank();"
        "print([m for m in ('tensorflow', 'keras', 'numpy', 'pyspark') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'StromStrategie'"):
        _ = keras_strom.StromStrategie  # type: ignore[attr-defined]


def test_credentials_survive_a_memory_file(monkeypatch: pytest.MonkeyPatch) -> None:
    credentials = Credentials.new().with_master(bytes(range(32)))
    fd = credentials.open_memory_file()
    try:
        environment = ClusterEnvironment(credentials_path=f"/proc/self/fd/{fd}")
        assert environment.load_credentials() == credentials
        assert environment.load_credentials() == credentials  # It can be read again.
        with pytest.raises(PermissionError):
            os.write(fd, b"x")
    finally:
        os.close(fd)


def test_credentials_never_show_their_secret() -> None:
    credentials = Credentials.new()
    assert credentials.secret.hex() not in repr(credentials)
    assert repr(credentials.secret) not in repr(credentials)
    assert pickle.loads(pickle.dumps(credentials)) == credentials
    assert Credentials.new() != credentials


def test_a_bad_credentials_file_is_named_and_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    with pytest.raises(errors.EnvironmentInvalid, match=r"KERAS_STROM_CREDENTIALS.*credentials"):
        ClusterEnvironment(credentials_path=str(path)).load_credentials()
    path.write_text(Credentials.new().to_json())
    path.chmod(0o644)
    with pytest.raises(errors.EnvironmentInvalid, match="chmod 600"):
        ClusterEnvironment(credentials_path=str(path)).load_credentials()
    path.write_text(Credentials.new().to_json().replace("secret", "sceret"))
    with pytest.raises(errors.EnvironmentInvalid) as raised:
        ClusterEnvironment(credentials_path=str(path)).load_credentials()
    assert Credentials.new().to_json()[:20] not in str(raised.value)
    assert "sceret" not in str(raised.value)
    assert str(path) in str(raised.value)
    path.write_bytes(b"\xff\xfe\0")  # A file of something else.
    with pytest.raises(errors.EnvironmentInvalid, match="must be a JSON object"):
        ClusterEnvironment(credentials_path=str(path)).load_credentials()


def test_nobody_is_told_to_make_what_holds_no_secret_private(tmp_path: Path) -> None:
    """As root that would take /dev/null from everybody else."""
    other, pipe = tmp_path / "other", tmp_path / "pipe"
    other.write_text("root:x:0:0\n")
    other.chmod(0o644)
    os.mkfifo(pipe)
    for path, words in (
        (other, "must be a JSON object"),
        (pipe, "a device or a pipe"),
        (Path(os.devnull), "a device or a pipe"),
    ):
        with pytest.raises(errors.InvalidOption, match=words) as raised:
            Credentials.read(str(path))
        assert "chmod" not in str(raised.value)


def test_credentials_of_the_wrong_length_are_refused() -> None:
    with pytest.raises(errors.InvalidOption, match="secret must be 32 random bytes, not"):
        Credentials(b"j" * 16, b"short")


def test_worker_failed_tells_rank_host_traceback_and_log() -> None:
    error = errors.WorkerFailed(3, "node-7", "Traceback ...\nValueError: no", ("a", "b"))
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.rank, copy.host, copy.log_tail) == (3, "node-7", ("a", "b"))
    for word in ("worker 3", "node-7", "ValueError: no", "  b"):
        assert word in str(copy)


def test_codes_of_the_c_abi_become_exceptions() -> None:
    assert isinstance(errors.error_of_code(-5, "no"), errors.SecretRejected)
    assert isinstance(errors.error_of_code(-99, "no"), errors.InternalError)
