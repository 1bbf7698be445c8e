"""Writes and reads update messages in NumPy, from docs/internals/message_format.md alone.

The native codec is judged by this second implementation: it is slow, follows the text line by line
and shares nothing with the native one.
"""

from __future__ import annotations

import dataclasses
import math
import struct

import numpy as np
import numpy.typing as npt

BITMAP4, RAW = 30, 31
MIN_LOG2_SPAN, MAX_LOG2_SPAN = 11, 21

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]


@dataclasses.dataclass(frozen=True)
class Header:
    """What a message says about all of its entries."""

    threshold: float
    elements: int
    iteration: int = 0
    value: float | None = None  # None: the threshold
    runs: tuple[tuple[int, float], ...] = ()  # (entries, value) where entries differ


class MalformedError(ValueError):
    """The bytes are not a valid message."""


# ------------------------------------------------------------------ pieces


def crc32c(data: bytes) -> int:
    """CRC32C bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def varint(value: int) -> bytes:
    """`value` in 7-bit groups, the least significant first."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field_bits(values: Integers, width: int) -> Bits:
    """The bits of fields of `width` bits each, least significant first."""
    shifts = np.arange(width, dtype=np.int64)
    return (values[:, None] >> shifts & 1).astype(np.uint8).reshape(-1)


def pack(bits: Bits) -> bytes:
    """A bit stream as bytes, padded with zeros."""
    return np.packbits(bits, bitorder="little").tobytes()


def unpack(data: bytes) -> Bits:
    """The bits of a stream, padding included."""
    return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")


def fields_of(bits: Bits, width: int) -> Integers:
    """The inverse of `field_bits`; `bits` is a whole number of fields."""
    weights = np.left_shift(np.int64(1), np.arange(width, dtype=np.int64))
    return bits.reshape(-1, width).astype(np.int64) @ weights


# ------------------------------------------------------------------ writing


def choose_log2_span(count: int, elements: int) -> int:
    """The span length of a message of entries."""
    log2_span = MAX_LOG2_SPAN
    while log2_span > MIN_LOG2_SPAN and count / max(elements, 1) * 2**log2_span > 1024:
        log2_span -= 1
    return log2_span


def _payload_of(k: int, gaps: Integers, negative: npt.NDArray[np.bool_]) -> bytes:
    fields = (gaps & (2**k - 1)) * 2 + negative
    unary = np.zeros(int((gaps >> k).sum()) + len(gaps), np.uint8)
    unary[np.cumsum((gaps >> k) + 1) - 1] = 1
    return pack(field_bits(fields, k + 1)) + pack(unary)


def rice_payload(
    indices: Integers,
    negative: npt.NDArray[np.bool_],
    coding: str = "auto",
    prefer: str = "size",
) -> tuple[int, bytes]:
    """k and the split Rice payload of a span's entries (at least one).

    `coding` sparse is k >= 1 and bitmap k = 0; auto that prefers speed takes a bitmap that costs no
    more than one bit an entry.
    """
    gaps = np.diff(indices, prepend=-1) - 1
    bitmap = 0, _payload_of(0, gaps, negative)
    if coding == "bitmap":
        return bitmap
    least = 1 if coding == "sparse" else 0
    costs = [int(len(gaps) * (k + 2) + (gaps >> k).sum()) for k in range(MAX_LOG2_SPAN + 1)]
    k = costs.index(min(costs[least:]), least)
    best = k, _payload_of(k, gaps, negative)
    close = 8 * (len(bitmap[1]) - len(best[1])) <= len(gaps)
    return bitmap if coding == "auto" and prefer == "speed" and close else best


def table_value(value: float) -> float:
    """The nearest bfloat16, ties to even."""
    bits = int(np.float32(value).view(np.uint32))
    half = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return float(np.uint32(half << 16).view(np.float32))


def runs_of(values: Floats) -> tuple[tuple[int, float], ...]:
    """Runs of what consecutive entries add, without their signs."""
    borders = np.flatnonzero(np.diff(values)) + 1
    starts = [0, *borders.tolist()]
    ends = [*borders.tolist(), len(values)]
    return tuple((end - s, float(values[s])) for s, end in zip(starts, ends, strict=True))


def _table(header: Header) -> bytes:
    table = varint(len(header.runs))
    for entries, value in header.runs:
        table += varint(entries) + struct.pack("<f", value)[2:]
    return table


def _assemble(header: Header, log2_span: int, payloads: dict[int, tuple[int, int, bytes]]) -> bytes:
    """A message of {span: (count, coding, payload)}."""
    first = min(payloads, default=0)
    rows = [payloads.get(span, (0, 0, b"")) for span in range(first, max(payloads, default=-1) + 1)]
    payload = b"".join(row[2] for row in rows)
    count_bits = max((row[0] for row in rows), default=0).bit_length()
    end_bits = len(payload).bit_length()
    stream: list[Bits] = [np.zeros(0, np.uint8)]
    end = 0
    for count, coding, bytes_ in rows:
        end += len(bytes_)
        for field, width in ((count, count_bits), (coding, 5), (end, end_bits)):
            stream.append(field_bits(np.array([field], np.int64), width))
    directory = pack(np.concatenate(stream))

    has_value = header.value is not None and np.float32(header.value) != np.float32(
        header.threshold
    )
    opening = b"KS" + bytes([1, 2 if header.runs else int(has_value)])
    rest = struct.pack("<fBB", header.threshold, log2_span, count_bits)
    for number in (
        header.elements,
        header.iteration,
        first,
        len(rows),
        sum(row[0] for row in rows),
        len(payload),
    ):
        rest += varint(number)
    if header.runs:
        rest += _table(header)
    elif has_value:
        rest += struct.pack("<f", header.value)
    rest += directory + payload
    return opening + struct.pack("<I", crc32c(opening + rest)) + rest


def encode(
    header: Header,
    indices: Integers,
    negative: npt.NDArray[np.bool_],
    log2_span: int | None = None,
    coding: str = "auto",
    prefer: str = "size",
) -> bytes:
    """One message of the entries at ascending flat `indices`."""
    if log2_span is None:
        log2_span = choose_log2_span(len(indices), header.elements)
    payloads = {}
    for span in np.unique(indices >> log2_span):
        here = indices >> log2_span == span
        k, payload = rice_payload(
            indices[here] - (span << log2_span), negative[here], coding, prefer
        )
        payloads[int(span)] = (int(here.sum()), k, payload)
    return _assemble(header, log2_span, payloads)


def half_signs(elements: int, iteration: int) -> Integers:
    """The sign that a half of each element has in this iteration: +1 or -1."""
    return 1 - 2 * ((np.arange(elements, dtype=np.int64) + iteration) % 2)


def encode_bitmap4(header: Header, halves: Integers, log2_span: int | None = None) -> bytes:
    """One message of what each element sends, in halves of the value: -2 to 2.

    Where it is one half, its sign must be the one of `half_signs`.
    """
    if log2_span is None:
        log2_span = choose_log2_span(int(np.count_nonzero(halves)), header.elements)
    payloads = {}
    for start in range(0, len(halves), 2**log2_span):
        part = halves[start : start + 2**log2_span]
        half = np.abs(part) == 1
        plus, minus = (np.packbits(half | (part == full), bitorder="little") for full in (2, -2))
        if part.any():
            payload = np.stack([plus, minus], axis=1).tobytes()
            payloads[start >> log2_span] = (int(np.count_nonzero(part)), BITMAP4, payload)
    return _assemble(header, log2_span, payloads)


def encode_raw(header: Header, values: Floats, log2_span: int = 14) -> bytes:
    """One message of raw spans over the whole flat space."""
    payloads = {}
    for start in range(0, len(values), 2**log2_span):
        part = values[start : start + 2**log2_span]
        if np.any(part != 0):
            payloads[start >> log2_span] = (len(part), RAW, part.astype("<f4").tobytes())
    return _assemble(header, log2_span, payloads)


# ------------------------------------------------------------------ reading


def _require(condition: bool, words: str) -> None:
    if not condition:
        raise MalformedError(words)


class _Reader:
    """Takes pieces off the front of a message."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, size: int) -> bytes:
        _require(len(self.data) >= size, "too short")
        head, self.data = self.data[:size], self.data[size:]
        return head

    def varint(self, longest: int) -> int:
        value = 0
        for place in range(longest):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                _require(place == 0 or byte != 0, "padded varint")
                return value
        raise MalformedError("long varint")


def _decode_rice(payload: bytes, count: int, k: int, elements: int) -> tuple[Integers, Integers]:
    """Indices and signs (+1 or -1) of a span's entries."""
    field_bytes = math.ceil(count * (k + 1) / 8)
    _require(len(payload) > field_bytes and payload[-1] != 0, "unary stream")
    fields = unpack(payload[:field_bytes])
    _require(not fields[count * (k + 1) :].any(), "padding")
    low_and_sign = fields_of(fields[: count * (k + 1)], k + 1)
    ones = np.flatnonzero(unpack(payload[field_bytes:]))
    _require(len(ones) == count, "number of ones")
    gaps = (np.diff(ones, prepend=-1) - 1 << k) + (low_and_sign >> 1)
    indices = np.cumsum(gaps + 1) - 1
    _require(int(indices[-1]) < elements, "last index")
    return indices, 1 - 2 * (low_and_sign & 1)


def _decode_bitmap4(payload: bytes, count: int, length: int) -> tuple[Bits, Bits]:
    """For each element of a span whether it adds the value, whether it subtracts it; both: half."""
    _require(len(payload) == 2 * math.ceil(length / 8), "two bits an element")
    pairs = np.frombuffer(payload, np.uint8).reshape(-1, 2)
    plus, minus = (np.unpackbits(pairs[:, i], bitorder="little") for i in (0, 1))
    _require(not (plus | minus)[length:].any(), "padding")
    _require(int((plus | minus).sum()) == count, "number of entries")
    return plus[:length], minus[:length]


def _read_table(reader: _Reader, count: int) -> tuple[tuple[int, float], ...]:
    """The runs of a message of `count` entries."""
    size = reader.varint(5)
    _require(size >= 2, "length of the table")
    runs = []
    for _ in range(size):
        entries = reader.varint(5)
        (value,) = struct.unpack("<f", b"\0\0" + reader.take(2))
        _require(entries > 0, "empty run")
        _require(math.isfinite(value) and value >= 2.0**-126, "value of the table")
        runs.append((entries, value))
    _require(sum(run[0] for run in runs) == count, "runs")
    return tuple(runs)


def decode(message: bytes) -> tuple[Header, int, Floats]:
    """The header, the count and what the message adds to each element.

    Raises:
        MalformedError: the bytes are not a valid message.
    """
    reader = _Reader(message)
    _require(reader.take(3) == b"KS\1", "magic or version")
    flags = reader.take(1)[0]
    _require(flags in (0, 1, 2), "flags")
    checksum = struct.unpack("<I", reader.take(4))[0]
    _require(checksum == crc32c(message[:4] + message[8:]), "checksum")
    threshold, log2_span, count_bits = struct.unpack("<fBB", reader.take(6))
    _require(math.isfinite(threshold) and threshold >= 0, "threshold")
    _require(MIN_LOG2_SPAN <= log2_span <= MAX_LOG2_SPAN, "span")
    _require(count_bits <= log2_span + 1, "count bits")
    elements, iteration = reader.varint(6), reader.varint(5)
    first, spans = reader.varint(4), reader.varint(4)
    count, payload_bytes = reader.varint(5), reader.varint(5)
    _require(elements <= 2**39 and payload_bytes < 2**32, "limits")
    value = struct.unpack("<f", reader.take(4))[0] if flags & 1 else threshold
    _require(math.isfinite(value), "value")
    runs = _read_table(reader, count) if flags & 2 else ()
    ends = np.cumsum([run[0] for run in runs])
    _require(first + spans <= -(-elements // 2**log2_span), "spans outside")

    end_bits = payload_bytes.bit_length()
    row_bits = count_bits + 5 + end_bits
    directory = unpack(reader.take(math.ceil(spans * row_bits / 8)))
    payload = reader.take(payload_bytes)
    _require(not reader.data, "bytes after the end")
    _require(not directory[spans * row_bits :].any(), "padding")

    sums = np.zeros(elements, np.float32)
    start = total = 0
    for span, row in enumerate(directory[: spans * row_bits].reshape(spans, row_bits), first):
        span_count = int(fields_of(row[:count_bits], count_bits)[0]) if count_bits else 0
        coding = int(fields_of(row[count_bits : count_bits + 5], 5)[0])
        end = int(fields_of(row[count_bits + 5 :], end_bits)[0]) if end_bits else 0
        length = min(2**log2_span, elements - span * 2**log2_span)
        _require(start <= end <= payload_bytes and span_count <= length, "directory")
        piece, start, total = payload[start:end], end, total + span_count
        target = sums[span * 2**log2_span :][:length]
        if span_count == 0:
            _require(coding == 0 and not piece, "empty span")
        elif coding == RAW:
            _require(span_count == length and len(piece) == 4 * length and not runs, "raw span")
            raw = np.frombuffer(piece, "<f4")
            _require(bool(np.isfinite(raw).all()), "raw element")
            target += raw
        elif coding == BITMAP4:
            _require(not runs, "four states beside a table")
            _require(abs(value) >= 2.0**-125, "half of the value")
            plus, minus = _decode_bitmap4(piece, span_count, length)
            full = (plus.astype(np.float32) - minus) * np.float32(value)
            half = half_signs(length, iteration) * np.float32(value / 2)
            target += np.where(plus & minus, half, full).astype(np.float32)
        else:
            _require(coding <= log2_span, "k")
            indices, signs = _decode_rice(piece, span_count, coding, length)
            places = np.searchsorted(ends, np.arange(total - span_count, total), side="right")
            adds = np.array([run[1] for run in runs], np.float32)[places] if runs else value
            target[indices] += signs.astype(np.float32) * np.float32(adds)
    _require(total == count and start == payload_bytes, "totals")
    return Header(threshold, elements, iteration, value, runs), count, sums
