"""What a runner tells a worker: the KERAS_STROM_* variables.

This is the only module of keras-strom that reads the process environment. An explicit argument
always wins over a variable. `keras-strom run` and `keras_strom.spark.run` set those that a worker
needs; to start workers by other means, do the same on every worker:

=========================  ======================================================================
variable                   meaning
=========================  ======================================================================
KERAS_STROM_RANK           this worker, 0 to SIZE - 1; rank 0 is the chief
KERAS_STROM_SIZE           the number of workers
KERAS_STROM_LOCAL_RANK     this worker among those of its machine (default 0)
KERAS_STROM_LOCAL_SIZE     the workers of its machine (default 1)
KERAS_STROM_GPUS           "own": the GPUs that this process sees are this worker's; "shared": other
                           workers of its machine have them, too, or may come there (default: own,
                           where the worker is alone on its machine; else each takes one of those
                           it sees, by LOCAL_RANK)
KERAS_STROM_NEEDS_GPU      1: a `StromStrategy` that is given no `devices` is refused where
                           TensorFlow sees no GPU (default 0: it trains on the CPU, with a warning
                           where the machine has GPUs)
KERAS_STROM_GPU_STEP       "off": steps are never done by a GPU's own kernels, but on the host
                           (default "on": where they can be; no result depends on it)
KERAS_STROM_ATTEMPT        how often this rank was started before (default 0); a higher attempt
                           takes the place of a lower one
KERAS_STROM_MASTER         the master's address: host:port or [IPv6]:port
KERAS_STROM_CREDENTIALS    path of a file of mode 0600, or /proc/self/fd/N of an inherited memory
                           file: a JSON object with job_id, secret and master_public_key in
                           hexadecimal (`keras_strom.job.credentials`)
KERAS_STROM_NETWORK        JSON object of `NetworkConfig` options (default {})
KERAS_STROM_IP             this machine's address, where network_mask does not decide
KERAS_STROM_JOIN_TIMEOUT   seconds to wait until all workers have joined (default 600)
KERAS_STROM_MAX_FAILURES   how many workers that fail, for whatever reason, are started again
                           (default 0: a `fit` that fails on one worker fails on all); where some
                           are, the others train on. Not set on Spark, where an exception ends
                           the job, and only workers that die are started again
KERAS_STROM_DRAIN_SECONDS  seconds that a worker has to leave which is asked to (default 30)
KERAS_STROM_RUNNER_FD      number of an inherited socket, through which the runner asks for that
KERAS_STROM_DATA           folder of the rows that a Spark task has laid down for its worker
KERAS_STROM_CHECKPOINTS    JSON object of a `CheckpointPlan`; not set = none are made
KERAS_STROM_STATUS         path of a pipe, /proc/self/fd/N, to which this worker writes what it
                           does (`keras_strom.job.worker_record`); not set = nobody wants to know
=========================  ======================================================================

None of RANK, SIZE, MASTER and CREDENTIALS set means one worker on its own. RANK and SIZE come
together, and with SIZE > 1 so do MASTER and CREDENTIALS. An unknown KERAS_STROM_ variable is
refused: it is most likely a misspelt one. Those that Kubernetes sets in every container for a
Service whose name begins with `keras-strom` are nobody's options and are passed over.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Collection, Mapping
from typing import Literal, TypeVar

from keras_strom import errors
from keras_strom.job.checkpoint_plan import CheckpointPlan
from keras_strom.job.credentials import Credentials
from keras_strom.job.network import HostPort, NetworkConfig, format_address, parse_address, parse_ip

PREFIX = "KERAS_STROM_"
RANK = PREFIX + "RANK"
SIZE = PREFIX + "SIZE"
LOCAL_RANK = PREFIX + "LOCAL_RANK"
LOCAL_SIZE = PREFIX + "LOCAL_SIZE"
GPUS = PREFIX + "GPUS"
NEEDS_GPU = PREFIX + "NEEDS_GPU"
GPU_STEP = PREFIX + "GPU_STEP"  # read by the operator of a step (custom_ops/tf/device_step.cc)
ATTEMPT = PREFIX + "ATTEMPT"
MASTER = PREFIX + "MASTER"
CREDENTIALS = PREFIX + "CREDENTIALS"
NETWORK = PREFIX + "NETWORK"
IP = PREFIX + "IP"
JOIN_TIMEOUT = PREFIX + "JOIN_TIMEOUT"
MAX_FAILURES = PREFIX + "MAX_FAILURES"
DRAIN_SECONDS = PREFIX + "DRAIN_SECONDS"
RUNNER_FD = PREFIX + "RUNNER_FD"
DATA = PREFIX + "DATA"
CHECKPOINTS = PREFIX + "CHECKPOINTS"
STATUS = PREFIX + "STATUS"

_KNOWN = frozenset(
    (
        *(RANK, SIZE, LOCAL_RANK, LOCAL_SIZE, GPUS, NEEDS_GPU, GPU_STEP, ATTEMPT, MASTER),
        *(CREDENTIALS, NETWORK, IP, JOIN_TIMEOUT, MAX_FAILURES, DRAIN_SECONDS, RUNNER_FD, DATA),
        *(CHECKPOINTS, STATUS),
    )
)

#: Those that say nothing of a place in a job, and so are the user's own, whoever starts a worker.
USERS = frozenset((IP, GPU_STEP, NEEDS_GPU))

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterEnvironment:
    """This process's place in the job. The defaults are one worker on its own.

    Attributes:
        rank, size: this worker and the number of workers.
        local_rank, local_size: the same among the workers of this machine.
        gpus: whether the GPUs that this process sees are its "own", or "shared" with other workers
            of its machine; None = nobody has said so.
        needs_gpu: whether it is not to train on the CPU where it finds no GPU.
        attempt: how often this rank was started before.
        master: the master's (host, port); None for one worker on its own.
        credentials_path: where the credentials are read from, see `load_credentials`.
        network: the job's network options.
        ip: this machine's address, where the mask does not decide.
        join_timeout: seconds to wait until all workers have joined.
        max_failures: how many workers that fail are started again while the others train on; 0, as
            on Spark, where only workers that die are started again = a `fit` that fails on one
            worker fails on all.
        drain_seconds: seconds that this worker has to leave when it is asked to.
        runner_fd: a socket to its runner (`keras_strom.job.drain`); None = there is none.
        data_path: where rows were laid down for this worker; None = nowhere.
        checkpoints: where this worker leaves its parts of checkpoints, how often, and the one to go
            on from; None = no checkpoints.
        status_path: the pipe to which this worker writes what it does; None = nobody wants to know.

    Example:
        >>> ClusterEnvironment.from_environ({}).size
        1
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    gpus: Literal["own", "shared"] | None = None
    needs_gpu: bool = False
    attempt: int = 0
    master: HostPort | None = None
    credentials_path: str | None = None
    network: NetworkConfig = dataclasses.field(default_factory=NetworkConfig)
    ip: str | None = None
    join_timeout: float = 600.0
    max_failures: int = 0
    drain_seconds: float = 30.0
    runner_fd: int | None = None
    data_path: str | None = None
    checkpoints: CheckpointPlan | None = None
    status_path: str | None = None

    def __post_init__(self) -> None:
        for variable, value, limit, what in (
            (RANK, self.rank, self.size, SIZE),
            (LOCAL_RANK, self.local_rank, self.local_size, LOCAL_SIZE),
        ):
            if not 0 <= value < limit:
                raise errors.EnvironmentInvalid(
                    f"{variable}={value} must lie between 0 and {what} - 1 = {limit - 1}"
                )
        if self.local_size > self.size:
            raise errors.EnvironmentInvalid(
                f"{LOCAL_SIZE}={self.local_size} is more than {SIZE}={self.size}"
            )

    @property
    def shares_gpus(self) -> bool:
        """Whether other workers of this machine may see the GPUs that this process sees."""
        return self.local_size > 1 if self.gpus is None else self.gpus == "shared"

    @property
    def goes_on(self) -> bool:
        """Whether this worker may begin in the middle of its data, where another one was or is."""
        restores = self.checkpoints is not None and self.checkpoints.restore is not None
        return self.attempt > 0 or self.size > 1 or restores  # Of several each may come late.

    @property
    def is_chief(self) -> bool:
        """Whether this worker seeds the parameters, writes files and shows progress."""
        return self.rank == 0

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> ClusterEnvironment:
        """Reads the variables of this module's table.

        Args:
            environ: the variables; None = those of this process.

        Raises:
            EnvironmentInvalid: some are missing, unknown or unreadable; the message names them.
        """
        variables = os.environ if environ is None else environ
        ours = {name: value for name, value in variables.items() if name.startswith(PREFIX)}
        unknown = sorted(set(ours) - _KNOWN - _of_services(ours))
        if unknown:
            raise errors.EnvironmentInvalid(
                f"unknown variable {', '.join(unknown)}; keras-strom reads "
                f"{', '.join(sorted(_KNOWN))}"
            )
        return cls._from_known(_Reader(ours))

    @classmethod
    def _from_known(cls, read: _Reader) -> ClusterEnvironment:
        read(GPU_STEP, _on_or_off, True)
        read.together(RANK, SIZE)
        read.together(LOCAL_RANK, LOCAL_SIZE)
        read.together(MASTER, CREDENTIALS)
        size = read(SIZE, _positive_integer, 1)
        for dependent in (LOCAL_RANK, ATTEMPT, MASTER):
            read.requires(dependent, RANK)
        if size > 1:
            read.requires(SIZE, MASTER)
        return cls(
            rank=read(RANK, _integer, 0),
            size=size,
            local_rank=read(LOCAL_RANK, _integer, 0),
            local_size=read(LOCAL_SIZE, _positive_integer, 1),
            gpus=read(GPUS, _own_or_shared, None),
            needs_gpu=read(NEEDS_GPU, _zero_or_one, False),
            attempt=read(ATTEMPT, _integer, 0),
            master=read(MASTER, parse_address, None),
            credentials_path=read(CREDENTIALS, str, None),
            network=read(NETWORK, NetworkConfig.from_json, NetworkConfig()),
            ip=read(IP, _ip, None),
            join_timeout=read(JOIN_TIMEOUT, _seconds, cls.join_timeout),
            max_failures=read(MAX_FAILURES, _integer, 0),
            drain_seconds=read(DRAIN_SECONDS, _seconds, cls.drain_seconds),
            runner_fd=read(RUNNER_FD, _integer, None),
            data_path=read(DATA, str, None),
            checkpoints=read(CHECKPOINTS, CheckpointPlan.from_json, None),
            status_path=read(STATUS, str, None),
        )

    def to_environ(self) -> dict[str, str]:
        """The variables from which `from_environ` reads an equal value."""
        variables = {
            RANK: str(self.rank),
            SIZE: str(self.size),
            LOCAL_RANK: str(self.local_rank),
            LOCAL_SIZE: str(self.local_size),
            ATTEMPT: str(self.attempt),
            NETWORK: self.network.to_json(),
            JOIN_TIMEOUT: repr(self.join_timeout),
        }
        if self.master is not None:
            variables[MASTER] = format_address(self.master)
        if self.credentials_path is not None:
            variables[CREDENTIALS] = self.credentials_path
        if self.gpus is not None:
            variables[GPUS] = self.gpus
        if self.needs_gpu:
            variables[NEEDS_GPU] = "1"
        if self.ip is not None:
            variables[IP] = self.ip
        if self.max_failures:
            variables[MAX_FAILURES] = str(self.max_failures)
        if self.drain_seconds != type(self).drain_seconds:
            variables[DRAIN_SECONDS] = repr(self.drain_seconds)
        if self.runner_fd is not None:
            variables[RUNNER_FD] = str(self.runner_fd)
        if self.data_path is not None:
            variables[DATA] = self.data_path
        if self.checkpoints is not None:
            variables[CHECKPOINTS] = self.checkpoints.to_json()
        if self.status_path is not None:
            variables[STATUS] = self.status_path
        return variables

    def load_credentials(self) -> Credentials:
        """Reads the credentials from `credentials_path`, each time anew.

        Raises:
            EnvironmentInvalid: there are none, or they cannot be read.
        """
        if self.credentials_path is None:
            raise errors.EnvironmentInvalid(f"{CREDENTIALS} is not set")
        try:
            return Credentials.read(self.credentials_path)
        except errors.InvalidOption as error:
            raise errors.EnvironmentInvalid(f"{CREDENTIALS}: {error}") from None


def is_worker() -> bool:
    """Whether a runner has given this process a place in a job."""
    return RANK in os.environ


def rank() -> int:
    """This worker's number, 0 to `size()` - 1."""
    return ClusterEnvironment.from_environ().rank


def size() -> int:
    """The number of workers; 1 outside a cluster."""
    return ClusterEnvironment.from_environ().size


def local_rank() -> int:
    """This worker's number among the workers of its machine, for example to choose a device."""
    return ClusterEnvironment.from_environ().local_rank


def is_chief() -> bool:
    """Whether this worker is rank 0, which writes files and shows progress."""
    return ClusterEnvironment.from_environ().is_chief


def node_address() -> str | None:
    """KERAS_STROM_IP, this machine's address where the network mask does not decide."""
    return ClusterEnvironment.from_environ().ip


def data_path() -> str | None:
    """KERAS_STROM_DATA, where rows were laid down for this worker."""
    return ClusterEnvironment.from_environ().data_path


def inherited() -> dict[str, str]:
    """What a worker inherits of this process's environment: all but its place in a job."""
    return without_place(os.environ)


def without_place(variables: Mapping[str, str]) -> dict[str, str]:
    """Those that do not depend on a place in a job."""
    return {k: v for k, v in variables.items() if not k.startswith(PREFIX) or k in USERS}


def user_state_folders() -> tuple[str, ...]:
    """Where this user's programs keep what concerns their present runs (XDG's rules).

    Others of this user's programs may have another first one: a job that a service starts has no
    `XDG_RUNTIME_DIR`. A user without a home may have none.
    """
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    running = os.environ.get("XDG_RUNTIME_DIR")
    folders = [running, state] if running and os.path.isdir(running) else [state]
    return tuple(os.path.join(one, "keras-strom") for one in folders if os.path.isabs(one))


def working_folders() -> tuple[str, ...]:
    """The folder where this process works, by its own name and by that of its user's shell.

    The second is another one where the user came there by a symbolic link.
    """
    own, shells = os.getcwd(), os.environ.get("PWD", "")
    with contextlib.suppress(OSError):
        if os.path.isabs(shells) and shells != own and os.path.samefile(own, shells):
            return own, shells
    return (own,)


def ssh_client() -> str | None:
    """The address from which the ssh server of this process's session was reached."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[0] if words else None


def scheduled_rank() -> int | None:
    """The rank that a scheduler has given this process: Slurm, or an Indexed Job of Kubernetes.

    Raises:
        EnvironmentInvalid: its variable is no number.
    """
    return _scheduled("SLURM_PROCID", "JOB_COMPLETION_INDEX")


def scheduled_size() -> int | None:
    """How many tasks Slurm runs.

    Raises:
        EnvironmentInvalid: its variable is no number.
    """
    return _scheduled("SLURM_NTASKS")


def slurm_nodes() -> tuple[str, str | None] | None:
    """SLURM_JOB_NODELIST and SLURM_TASKS_PER_NODE; None = not in an allocation of Slurm."""
    nodes = os.environ.get("SLURM_JOB_NODELIST")
    return None if nodes is None else (nodes, os.environ.get("SLURM_TASKS_PER_NODE"))


def scheduled_job_file() -> str | None:
    """A path that all tasks of a Slurm job share and no other job has; None = not under Slurm."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    restarts = os.environ.get("SLURM_RESTART_COUNT")  # What was left of the run before is no guide.
    name = f"keras-strom-{job}.json" if restarts is None else f"keras-strom-{job}-{restarts}.json"
    return os.path.join(os.environ.get("SLURM_SUBMIT_DIR", os.curdir), name)


def _of_services(names: Collection[str]) -> set[str]:
    """Those that Kubernetes has set for its Services, as Docker did for linked containers.

    A Service `keras-strom-master` gives KERAS_STROM_MASTER_SERVICE_HOST, ..._SERVICE_PORT and
    ..._PORT, and more that begin with the last two.
    """
    host = "_SERVICE_HOST"
    services = [name.removesuffix(host) for name in names if name.endswith(host)]
    begin = tuple(name + end for name in services for end in (host, "_SERVICE_PORT", "_PORT"))
    return {name for name in names if name.startswith(begin)}


def _scheduled(*names: str) -> int | None:
    read = _Reader(os.environ)
    return next((read(name, _integer, 0) for name in names if name in os.environ), None)


def own_names() -> list[str]:
    """Which KERAS_STROM_* variables are set, known or not."""
    return sorted(name for name in os.environ if name.startswith(PREFIX))


def variable(name: str) -> str | None:
    """Any variable of this process that its user names."""
    return os.environ.get(name)


def add(variables: Mapping[str, str]) -> None:
    """Gives this process variables more, or other values of those that it has."""
    os.environ.update(variables)


def replace(variables: Mapping[str, str]) -> None:
    """Gives this process the environment of another one."""
    os.environ.clear()
    os.environ.update(variables)


class _Reader:
    """Parses variables one by one; every error names the variable."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def __call__(self, name: str, parse: Callable[[str], T], default: T) -> T:
        text = self._variables.get(name)
        if text is None:
            return default
        try:
            return parse(text)
        except (ValueError, errors.StromError) as error:
            raise errors.EnvironmentInvalid(f"{name}={text!r}: {error}") from None

    def together(self, *names: str) -> None:
        for name in names:
            for other in names:
                self.requires(name, other)

    def requires(self, name: str, other: str) -> None:
        if name in self._variables and other not in self._variables:
            raise errors.EnvironmentInvalid(
                f"{name} is set but {other} is not; set both, or none for one worker on its own"
            )


def _integer(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("must be a whole number, 0 or more")
    return int(text)


def _own_or_shared(text: str) -> Literal["own", "shared"]:
    if text == "own":
        return "own"
    if text == "shared":
        return "shared"
    raise ValueError('must be "own" or "shared"')


def _on_or_off(text: str) -> bool:
    if text not in ("on", "off"):
        raise ValueError('must be "on" or "off"')
    return text == "on"


def _zero_or_one(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("must be 0 or 1")
    return text == "1"


def _positive_integer(text: str) -> int:
    value = _integer(text)
    if value == 0:
        raise ValueError("must be 1 or more")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise ValueError("must be a positive number of seconds")
    return value


def _ip(text: str) -> str:
    return str(parse_ip(text))
