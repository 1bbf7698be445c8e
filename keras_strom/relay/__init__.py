"""The relay: any bytes between processes (`Master`, `Worker`), and a training's updates.

    secret = keras_strom.relay.new_secret()
    with Master(secret, workers=2) as master, Worker(master.join_info, secret) as worker:
        ...

`bytes_relay` is the relay by itself, `training_relay` what workers and masters of a training use,
`counters` what both have counted.
"""

from keras_strom.relay.bytes_relay import (
    MAX_MESSAGE_BYTES,
    JoinInfo,
    Master,
    Message,
    Worker,
    new_secret,
)

__all__ = ["MAX_MESSAGE_BYTES", "JoinInfo", "Master", "Message", "Worker", "new_secret"]
