"""What runs in the process of a master of its own; `runner.master_supervisor` starts it.

    python -m keras_strom.runner.master_main

Each line that it reads is a question and each line that it writes the answer to it, both JSON: the
first question says what the master is to be. The secret comes with it, so neither arguments nor
environment hold it. Where the questions end, whoever started it is gone, and the master ends too.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any, BinaryIO

from keras_strom import errors
from keras_strom.job.credentials import Credentials
from keras_strom.job.network import NetworkConfig
from keras_strom.relay.training_relay import TrainingMaster


def main(questions: BinaryIO, answers: BinaryIO) -> int:
    """Runs one master; the return value is the exit code."""
    try:
        master = _master(json.loads(questions.readline()))
    except errors.StromError as error:
        _answer(answers, {"error": type(error).__name__, "words": str(error)})
        return 1
    with master:
        public_key = master.credentials.master_public_key
        assert public_key is not None
        _answer(
            answers,
            {"address": master.address, "bound": master.bound, "public_key": public_key.hex()},
        )
        for line in questions:
            question = json.loads(line)
            if question["do"] == "close":
                master.close(question["reason"])
                _answer(answers, master.status())
                return 0
            if question["do"] == "worker_has_ended":
                for rank in question["ranks"]:
                    master.worker_has_ended(rank)
            _answer(answers, master.status())
        master.close("the process that has started the master is gone")
    return 0


def _master(job: dict[str, Any]) -> TrainingMaster:
    return TrainingMaster(
        workers=job["workers"],
        network=NetworkConfig.from_json(job["network"]),
        host=job["host"],
        credentials=Credentials.from_json(job["credentials"]),
        epoch=job["epoch"],
        min_workers=job["min_workers"],
        private_key=bytes.fromhex(job["private_key"]),
    )


def _answer(answers: BinaryIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
    # The runner says when it is over; a signal to all processes of a job means its workers.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(main(sys.stdin.buffer, sys.stdout.buffer))
