"""The command line: `keras-strom run -np 4 train.py --its --own --arguments`."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import keras_strom
from keras_strom import completion, errors, scalability_command
from keras_strom.command_parser import Defaults, Parser
from keras_strom.dashboard import commands as job_commands
from keras_strom.dashboard.page_address import PageAddress
from keras_strom.job import environment
from keras_strom.job.network import NetworkConfig, parse_address
from keras_strom.runner import master_command, scheduled_worker, slurm
from keras_strom.runner.console import let_go_of_output
from keras_strom.runner.hosts import Host, parse_hosts, read_hostfile
from keras_strom.runner.launcher import Job, launch
from keras_strom.runner.ssh import split_options
from keras_strom.runner.work import Script

_EXIT_BAD_INPUT = 2

#: The options of NetworkConfig that are flags of `run`, and those that `doctor` looks at.
_NETWORK = tuple(field.name for field in dataclasses.fields(NetworkConfig))
_EXAMINED = ("port", "network_mask", "checkpoint_dir")

_NETWORK_HELP = {
    "port": "UDP port of the master; 0 = any free one",
    "network_mask": "CIDR mask that picks the interface on every machine; default: the one that "
    "leads to the other hosts, or loopback where there are none",
    "master_address": "host[:port] where workers reach the master, if not its own address",
    "topology": "auto, plain or mesh",
    "max_children": "most children of a node of a tree",
    "max_depth": "most levels of a tree",
    "merging": "auto, on or off: pass on the sum of several updates as one message",
    "failure_timeout": "seconds of silence after which a peer is dead",
    "on_master_loss": "stop, or wait for another master and go on",
    "checkpoint_dir": "folder for checkpoints of the job; a run that finds one goes on from it",
    "checkpoint_interval": "seconds from one checkpoint to the next",
    "checkpoints_kept": "so many checkpoints stay",
    "same_host": "permit shared memory between local workers",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; the return value is the exit code."""
    try:
        return _run_command(arguments)
    finally:
        let_go_of_output()


def _run_command(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    _refuse_idle_flags(parser, options)
    signal.signal(signal.SIGTERM, _end_on_signal)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # Otherwise it is nohup's.
        signal.signal(signal.SIGHUP, _end_on_signal)
    try:
        code: int = options.act(options)
    except errors.WorkerFailed as error:
        _complain(str(error))
        return 1
    except errors.StromError as error:
        _complain(str(error))
        return _EXIT_BAD_INPUT
    except KeyboardInterrupt:
        _complain("interrupted")
        return 128 + signal.SIGINT
    except SystemExit as end:
        if end.code == 128 + signal.SIGTERM:
            _complain("ended by SIGTERM")
        raise
    return code


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="keras-strom", description="Trains one Keras model with several workers.")
    _add_version(parser)
    commands = parser.add_subparsers(dest="command")
    _add_run(commands)
    _add_master(commands)
    _add_worker(commands)
    _add_prepare(commands)
    _add_status(commands)
    _add_top(commands)
    _add_doctor(commands)
    _add_scalability(commands)
    _add_completion(commands)
    return parser


def _add_version(parser: Any) -> None:
    add = functools.partial(parser.add_argument, action="store_true")
    add("--version", help="print the version, and nothing else unless told to")
    add(
        "--verbose", help="with --version: print all that a bug report needs to say of this machine"
    )
    add("--json", dest="as_json", help="with --version --verbose: print it as JSON")
    parser.set_defaults(act=functools.partial(_version, parser))


def _version(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    if not options.version:
        parser.error("the following arguments are required: command")
    if not options.verbose:
        sys.stdout.write(f"{keras_strom.__version__}\n")
        return 0
    from keras_strom.doctor import bug_report

    found = bug_report.collect()
    shown = json.dumps(found, indent=2) if options.as_json else bug_report.text(found)
    sys.stdout.write(f"{shown}\n")
    return 0


def _refuse_idle_flags(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Those of `--version` before a command, or without one another."""
    if options.version and options.command is not None:
        parser.error(f"--version and {options.command} do not go together")
    if options.verbose and not options.version:
        parser.error("--verbose has no effect without --version")
    if options.as_json and not options.verbose:
        parser.error("--json before a command has no effect without --version --verbose")


def _add_run(commands: Any) -> None:
    run = _command(
        commands,
        "run",
        _run,
        help="run a script on several workers, of this machine or of others",
        description="Runs a script on several workers: of this machine, or of the hosts that are "
        "named, to which ssh leads without a password. Give -np, hosts or both; neither means the "
        "nodes of an allocation of Slurm.",
    )
    _add_workers(run, "number of workers; default: one for each slot of the hosts")
    hosts = run.add_argument_group("hosts")
    _add_hosts(hosts)
    hosts.add_argument(
        "-x",
        "--env",
        action="append",
        metavar="NAME[=VALUE]",
        help="set a variable for workers, everywhere; without a value it is this machine's. May be "
        "given several times",
    )
    _add_job(run)
    _add_drain(run.add_argument_group("drain"))
    run.add_argument(
        "--warm-start",
        action="store_true",
        help="import TensorFlow once and fork the workers: they start sooner, those that replace "
        "others too, and share memory; what a script sets in os.environ comes after that import",
    )
    _add_network(run.add_argument_group("network"), _NETWORK)
    _add_script(run)


def _add_hosts(hosts: Any) -> None:
    one_of = hosts.add_mutually_exclusive_group()
    one_of.add_argument(
        "--hosts",
        metavar="HOST:SLOTS,...",
        help="where workers run, and how many at most on each, as in a:4,b:4; [fd00::7]:4 for an "
        "IPv6 address, localhost for this machine",
    )
    one_of.add_argument(
        "--hostfile",
        metavar="FILE",
        help="a file with a host a line, as in 'a slots=4' or 'a:4'",
    )
    hosts.add_argument(
        "--ssh-args",
        metavar="'OPTIONS'",
        help="more options for ssh, as in --ssh-args='-p 2222 -i key'",
    )


def _add_master(commands: Any) -> None:
    master = _command(
        commands,
        "master",
        _master,
        help="run a job whose workers a scheduler starts",
        description="Runs the master of a job whose workers are started elsewhere, each by "
        "`keras-strom worker`, and says when one of them fails. It ends with the job.",
    )
    _add_workers(master, "number of workers; default: SLURM_NTASKS, under Slurm")
    _add_job_file(
        master,
        "the file that it writes for the workers, readable for its owner alone, and removes at the "
        "end; or the master.json of `keras-strom prepare`, which it reads",
    )
    _add_job(master)
    _add_network(master.add_argument_group("network"), _NETWORK)


def _add_worker(commands: Any) -> None:
    worker = _command(
        commands,
        "worker",
        _worker,
        help="run one worker that a scheduler has started",
        description="Runs a script as one worker of the job whose master is `keras-strom master`, "
        "waits for both, and shows the script's output. The exit code is the script's.",
    )
    worker.add_argument(
        "--rank",
        type=int,
        metavar="N",
        help="which worker, from 0; default: SLURM_PROCID under Slurm, JOB_COMPLETION_INDEX in an "
        "Indexed Job of Kubernetes",
    )
    _add_job_file(worker, "the file that the master has written, or the worker.json of `prepare`")
    worker.add_argument(
        "--master",
        metavar="HOST:PORT",
        help="where to reach the master, if not where the file says",
    )
    _add_start_timeout(worker, "how long to wait for the file and the master")
    _add_script(worker)


def _add_prepare(commands: Any) -> None:
    prepare = _command(
        commands,
        "prepare",
        _prepare,
        help="make the credentials of a job before its master runs",
        description="Leaves master.json and worker.json in a folder: the job files of `keras-strom "
        "master` and `keras-strom worker` where these share no disk, to be handed to each as a "
        "secret.",
    )
    prepare.add_argument(
        "--master",
        required=True,
        metavar="HOST:PORT",
        help="where workers will reach the master",
    )
    prepare.add_argument("folder", help="where to leave the two files")


def _add_workers(parser: Any, words: str) -> None:
    parser.add_argument("-np", "--num-proc", type=int, metavar="N", help=words)


def _add_start_timeout(parser: Any, words: str) -> None:
    parser.add_argument(
        "--start-timeout",
        type=float,
        default=environment.ClusterEnvironment.join_timeout,
        metavar="SECONDS",
        help=words,
    )


def _add_job_file(parser: Any, what: str) -> None:
    parser.add_argument(
        "--job",
        metavar="FILE",
        help=f"{what}; default: keras-strom-JOBID.json where sbatch was called, under Slurm",
    )


def _add_job(parser: Any) -> None:
    """Flags of whoever runs a job."""
    _add_start_timeout(parser, "how long workers wait for each other")
    parser.add_argument(
        "--max-failures",
        type=int,
        default=0,
        metavar="N",
        help="so many workers that fail are started again, and train on with the others",
    )
    parser.add_argument(
        "--min-workers",
        type=int,
        metavar="N",
        help="so many are enough to start, and with fewer of them training waits; default: it "
        "starts with all and goes on with those that are left",
    )
    parser.add_argument(
        "--drain-seconds",
        type=float,
        default=environment.ClusterEnvironment.drain_seconds,
        metavar="SECONDS",
        help="how long a worker that is asked to leave may take to hand over what it has learnt; "
        "then it is killed",
    )
    parser.add_argument(
        "--dashboard",
        nargs="?",
        const="0",
        metavar="[HOST:]PORT",
        help="serve a live page of the job; without a port at any free one, without a host on the "
        "loopback interface alone. Its address, with the token that it needs, is shown",
    )


def _add_drain(parser: Any) -> None:
    """Flags that say how a machine that is about to be taken away is noticed."""
    parser.add_argument(
        "--drain-signal",
        metavar="NAME",
        help="a signal to this command, as in SIGUSR1, by which the workers of this machine hand "
        "over and leave; those of others go on. SIGTERM to one worker's process has that one leave",
    )
    parser.add_argument(
        "--drain-file",
        metavar="PATH",
        help="the same once this file is there: for a script that hears of a preemption",
    )


def _add_script(parser: Any) -> None:
    parser.add_argument("script", help="the Python file that every worker runs")
    rest = parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="the script's own arguments"
    )
    rest.required = False


def _add_status(commands: Any) -> None:
    status = _command(
        commands,
        "status",
        job_commands.status,
        help="tell what a running job does",
        description="Tells once what a job does that was started with --dashboard.",
    )
    job_commands.add_status_flags(status)


def _add_top(commands: Any) -> None:
    top = _command(
        commands,
        "top",
        job_commands.top,
        help="watch a running job in the terminal",
        description="Shows what a job does that was started with --dashboard, until it ends or "
        "Ctrl+C is pressed.",
    )
    job_commands.add_top_flags(top)


def _add_doctor(commands: Any) -> None:
    doctor = _command(
        commands,
        "doctor",
        _examine,
        help="look at this machine, or at several, before a run",
        description="Looks at this machine, or at hosts that ssh leads to, before a run: versions, "
        "processors, memory, clocks, the address and ports that a run with these flags would use, "
        "and the relay's packets on them. The exit code is 1 where a run would fail.",
    )
    _add_workers(
        doctor, "number of workers that are to run; default: 2, or one for each slot of the hosts"
    )
    _add_hosts(doctor.add_argument_group("hosts"))
    _add_network(doctor, _EXAMINED)
    doctor.add_argument(
        "--job", metavar="FILE", help="a job's file, for `keras-strom worker`, to be looked at too"
    )
    doctor.add_argument("--json", action="store_true", help="print JSON in place of a table")


def _examine(options: argparse.Namespace) -> int:
    import rich.console

    from keras_strom import doctor

    network, hosts = _network(options, _EXAMINED), _hosts(options)
    arguments = split_options(options.ssh_args)
    if arguments and not hosts:
        raise errors.InvalidOption("--ssh-args has no effect without --hosts or --hostfile")
    if hosts:
        found = doctor.examine_hosts(hosts, options.num_proc, network, arguments)
    else:
        found = doctor.examine(2 if options.num_proc is None else options.num_proc, network)
    report = doctor.Report(found)
    if options.job is not None:
        report.append(doctor.secret(options.job))
    if options.json:
        sys.stdout.write(json.dumps(report.to_json(), indent=2) + "\n")
    else:
        rich.console.Console().print(report.table())
    return int(report.would_fail)


def _add_scalability(commands: Any) -> None:
    scalability = _command(
        commands,
        "scalability",
        scalability_command.show,
        help="tell how much faster a cluster would train",
        description="Tells how much faster a cluster would train than one worker: from the time of "
        "a plain Keras step, and what encoding, adding and relaying cost, as measured on this "
        "machine where it is not given.",
    )
    scalability_command.add_flags(scalability)


def _add_completion(commands: Any) -> None:
    completes = _command(
        commands,
        "completion",
        _print_completion,
        help="print what has a shell complete commands and flags",
        description="Prints a script for a shell, which then completes commands, flags and files "
        'after `keras-strom`: put `eval "$(keras-strom completion bash)"` into ~/.bashrc, or '
        "with zsh into ~/.zshrc after `compinit`.",
    )
    completes.add_argument("shell", choices=completion.SHELLS, help="which shell")


def _print_completion(options: argparse.Namespace) -> int:
    sys.stdout.write(completion.script(_parser(), options.shell) + "\n")
    return 0


def _command(commands: Any, name: str, act: Callable[..., int], **words: str) -> Any:
    """A command's parser; `act` does what its options say, and gives the exit code."""
    parser = commands.add_parser(name, formatter_class=Defaults, allow_abbrev=False, **words)
    parser.set_defaults(act=act)
    return parser


def _add_network(parser: Any, names: Sequence[str]) -> None:
    """Flags for these options of NetworkConfig."""
    fields = {field.name: field for field in dataclasses.fields(NetworkConfig)}
    for name in names:
        parser.add_argument(f"--{name.replace('_', '-')}", **_flag(fields[name]))


def _network(options: argparse.Namespace, names: Sequence[str]) -> NetworkConfig:
    """What `_add_network`'s flags say."""
    return NetworkConfig(**{name: getattr(options, name) for name in names})


def _flag(field: dataclasses.Field[Any]) -> dict[str, Any]:
    flag: dict[str, Any] = {"default": field.default, "help": _NETWORK_HELP[field.name]}
    if isinstance(field.default, bool):
        return {**flag, "action": argparse.BooleanOptionalAction}
    return {**flag, "type": str if field.default is None else type(field.default)}


def _run(options: argparse.Namespace) -> int:
    launch(_job(options))
    return 0


def _job(options: argparse.Namespace) -> Job:
    hosts = _hosts(options)
    if not hosts and options.num_proc is None and (nodes := environment.slurm_nodes()) is not None:
        hosts = slurm.hosts(*nodes)
    workers = options.num_proc
    if workers is None:
        if not hosts:
            raise errors.InvalidOption("say how many workers there are (-np 4) or where (--hosts)")
        workers = sum(host.slots for host in hosts)
    return Job(
        work=Script(options.script, tuple(options.arguments)),
        env=dict(map(_variable, options.env or ())),
        drain_signal=options.drain_signal,
        drain_file=options.drain_file,
        warm_start=options.warm_start,
        hosts=hosts,
        ssh_args=split_options(options.ssh_args),
        **_of_any_job(options, workers),
    )


def _of_any_job(options: argparse.Namespace, workers: int) -> dict[str, Any]:
    """What `_add_job`'s and `_add_network`'s flags say, as arguments of `Job`."""
    if workers < 1:
        raise errors.InvalidOption(f"-np {workers}: there must be at least one worker")
    return {
        "workers": workers,
        "network": _network(options, _NETWORK),
        "start_timeout": options.start_timeout,
        "max_failures": options.max_failures,
        "min_workers": options.min_workers,
        "drain_seconds": options.drain_seconds,
        "dashboard": PageAddress.of(options.dashboard),
    }


def _hosts(options: argparse.Namespace) -> tuple[Host, ...]:
    """What `_add_hosts`'s flags say."""
    if options.hosts is not None:
        return parse_hosts(options.hosts)
    return () if options.hostfile is None else read_hostfile(options.hostfile)


def _master(options: argparse.Namespace) -> int:
    workers = options.num_proc if options.num_proc is not None else environment.scheduled_size()
    if workers is None:
        raise errors.InvalidOption("say how many workers there are: -np 4")
    job = Job(work=None, **_of_any_job(options, workers))
    master_command.serve(job, _job_file(options))
    return 0


def _worker(options: argparse.Namespace) -> int:
    rank = options.rank if options.rank is not None else environment.scheduled_rank()
    if rank is None:
        raise errors.InvalidOption("say which worker this is: --rank 0 and up")
    worker = scheduled_worker.ScheduledWorker(
        rank=rank,
        job_path=_job_file(options),
        work=Script(options.script, tuple(options.arguments)),
        start_timeout=options.start_timeout,
        master=None if options.master is None else parse_address(options.master),
    )
    try:
        return scheduled_worker.serve(worker)
    except errors.MasterLost as error:
        _complain(str(error))
        return 1


def _prepare(options: argparse.Namespace) -> int:
    master_command.prepare(options.folder, parse_address(options.master))
    return 0


def _job_file(options: argparse.Namespace) -> str:
    path: str | None = options.job or environment.scheduled_job_file()
    if path is None:
        raise errors.InvalidOption(
            "say which file has what workers need, the same for the master and all of them: "
            "--job FILE"
        )
    return path


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    found = value if equals else environment.variable(name)
    if not name or found is None:
        raise errors.InvalidOption(f"-x {text}: this machine has no such variable; -x NAME=VALUE")
    return name, found


def _complain(text: str) -> None:
    with contextlib.suppress(OSError):  # Nobody reads it: the exit code still tells.
        sys.stderr.write(f"keras-strom: {text}\n")


def _end_on_signal(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)
