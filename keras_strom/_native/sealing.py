"""X25519 and AES-256-GCM of libstrom.so: a TCP connection as private as the relay.

All keys have 32 bytes; random ones are private X25519 keys as they are.
"""

from __future__ import annotations

import ctypes

from keras_strom._native.library import check, declare

TAG_BYTES = 16
_KEY_BYTES = 32


def public_key(private_key: bytes) -> bytes:
    """The public half of an X25519 private key."""
    out = ctypes.create_string_buffer(_KEY_BYTES)
    check(declare("strom_public_key", ctypes.c_char_p, ctypes.c_char_p)(private_key, out))
    return out.raw


def agree(private_key: bytes, peer: bytes) -> bytes:
    """What the holders of two X25519 keys alone know.

    Raises:
        SecretRejected: `peer` is a key with which anybody would know it.
    """
    out = ctypes.create_string_buffer(_KEY_BYTES)
    function = declare("strom_agree", ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p)
    check(function(private_key, peer, out))
    return out.raw


def seal(key: bytes, number: int, text: bytes) -> bytes:
    """`text` encrypted, `TAG_BYTES` longer; a key never gets a number twice."""
    return _call("strom_seal", key, number, text, len(text) + TAG_BYTES)


def unseal(key: bytes, number: int, sealed: bytes) -> bytes:
    """The text of which `seal` has made `sealed`, at least `TAG_BYTES` bytes.

    Raises:
        SecretRejected: it was not sealed with this key and number.
    """
    return _call("strom_open", key, number, sealed, len(sealed) - TAG_BYTES)


def _call(name: str, key: bytes, number: int, given: bytes, size: int) -> bytes:
    out = ctypes.create_string_buffer(size)
    function = declare(
        name, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_int64, ctypes.c_char_p
    )
    check(function(key, number, given, len(given), out))
    return out.raw
