"""Tasks of a controller without Spark: what they say to it, a test says."""

from __future__ import annotations

import io
import queue
import socket
from collections.abc import Callable

from keras_strom.job.credentials import Credentials
from keras_strom.runner.channel import Channel
from keras_strom.runner.console import Console
from keras_strom.spark.runner.controller import Controller
from keras_strom.spark.runner.result_room import ResultRoom
from keras_strom.spark.runner.slots import Size

CREDENTIALS = Credentials.new()
DEADLINE = 30.0


class Tasks:
    """Tasks that speak to a controller as `task.run_task` would."""

    def __init__(
        self,
        workers: int,
        *,
        least: int | None = None,
        max_failures: int = 0,
        speculation: bool = False,
        room: ResultRoom | None = None,
    ) -> None:
        self.output = io.StringIO()
        #: Ranks of those that have ended well, as the master is told.
        self.told: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.controller = Controller(
            Size(workers=workers, least=least),
            CREDENTIALS,
            ("127.0.0.1", 0),
            Console(workers, self.output),
            ended=self.told.put,
            room=room,
            max_failures=max_failures,
            speculation=speculation,
        )
        self.channels: list[Channel] = []

    def connect(self, credentials: Credentials = CREDENTIALS) -> Channel:
        connection = socket.create_connection(("127.0.0.1", self.controller.port))
        self.channels.append(Channel(connection, credentials, self.controller.public_key))
        return self.channels[-1]

    def register(
        self, partition: int, host: str, attempt: int = 0, executor: str = "", task: int = 0
    ) -> Channel:
        channel = self.connect()
        hello = {
            **{"partition": partition, "host": host, "attempt": attempt},
            **{"executor": executor, "task": task},
        }
        channel.send({"type": "register", **hello})
        return channel

    def start(self, *hosts: str) -> list[Channel]:
        """One task on each host, which come in this order, all of them told to start."""
        channels = []
        for partition, host in enumerate(hosts):
            channels.append(self.register(partition, host))
            self.wait_for("registered", partition + 1)
        for channel in channels:
            hear(channel)
        return channels

    def wait_for(self, kind: str, count: int = 1) -> None:
        """Waits until `count` events of `kind` have happened."""

        def happened() -> bool:
            return [event.kind for event in self.controller.events].count(kind) >= count

        with self.controller._changed:
            assert self.controller._changed.wait_for(happened, DEADLINE)

    def wait_until(self, happened: Callable[[Controller], bool]) -> None:
        """Waits until something is so."""
        with self.controller._changed:
            assert self.controller._changed.wait_for(lambda: happened(self.controller), DEADLINE)

    def close(self) -> None:
        self.controller.close()
        for channel in self.channels:
            channel.close()


def hear(channel: Channel) -> dict[str, object]:
    """The next message that is no heartbeat."""
    while (message := channel.receive())["type"] == "heartbeat":
        pass
    return message
