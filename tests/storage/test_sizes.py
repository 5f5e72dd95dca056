"""Sizes are read as Spark reads them."""

from __future__ import annotations

import re

import pytest

from chandy.storage.sizes import size_in_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("1b", 1), ("16k", 16 << 10), ("16KB", 16 << 10), ("512m", 512 << 20), ("1g", 1 << 30),
     (" 1g ", 1 << 30), ("2TB", 2 << 40), ("1p", 1 << 50), ("0m", 0)],
)  # fmt: skip
def test_a_size_is_a_number_with_a_suffix_of_spark(text: str, size: int) -> None:
    assert size_in_bytes(text) == size


@pytest.mark.parametrize("text", ["", "g", "1", "1.5g", "-1g", "1 g", "1gib", "1x", "٣g", "1g1m"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        size_in_bytes(text)


def test_a_number_without_a_suffix_counts_what_the_setting_counts() -> None:
    assert size_in_bytes("2", without_suffix=1) == 2
    assert size_in_bytes("2", without_suffix=1 << 20) == size_in_bytes("2m", without_suffix=1)
