"""The record of batches: values that add up, and their bytes."""

from __future__ import annotations

import pytest

from chandy.storage.checkpoints.batch_record import (
    BatchRecord,
    BatchRecords,
    Digest,
    decode,
    encode,
    total,
)
from chandy.storage.errors import CodecError, UnfitError
from chandy.storage.ids import BatchId

RECORDS = BatchRecords(
    BatchId(3),
    (
        BatchRecord(BatchId(4), 'v1\n{"batchTimestampMs":7}\n{"logOffset":17}', {"sources/0/17": "v1\n{é}"}),
        BatchRecord(BatchId(6), "v1\n{}\n-", {}, {"out": Digest.of(2, 255)}),
    ),
)


def test_digests_of_parts_add_up_modulo_128_bits() -> None:
    most = Digest.of(3, (1 << 128) - 1)
    assert most.sum == "f" * 32
    assert most + Digest.of(1, 2) == Digest(4, "0" * 31 + "1")
    assert total([]) == Digest() == Digest.of(0, 1 << 128)
    assert total([most, Digest(), Digest.of(1, 2)]) == Digest.of(4, 1)


@pytest.mark.parametrize("text", ["", "F" * 32, "0" * 31, "0" * 33])
def test_a_sum_has_128_bits_in_lower_case_hex(text: str) -> None:
    with pytest.raises(ValueError, match="sum"):
        Digest(1, text)


def test_records_come_back_as_they_were_written() -> None:
    assert decode(encode(RECORDS)) == RECORDS


def test_changed_bytes_are_no_records() -> None:
    data = encode(RECORDS)
    with pytest.raises(UnfitError, match="SHA-256"):
        decode(data.replace(b"batchTimestampMs", b"batchTimestampXs"))
    with pytest.raises(CodecError):
        decode(data[:-1])


def test_a_batch_without_a_record_is_missing() -> None:
    assert RECORDS.missing(BatchId(8)) == (5, 7, 8)
    assert RECORDS.missing(BatchId(3)) == BatchRecords().missing(BatchId(-1)) == ()
