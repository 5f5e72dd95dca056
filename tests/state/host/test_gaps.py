from __future__ import annotations

from chandy.state.host.gaps import Gaps


def test_a_gap_is_known_until_something_is_written_into_it() -> None:
    gaps = Gaps()
    assert gaps.behind(b"a") == b"a"
    gaps.learn(b"a", b"m", gaps.version)
    gaps.learn(b"c", b"e", gaps.version)
    assert (gaps.behind(b"a"), gaps.behind(b"c"), gaps.behind(b"b")) == (b"m", b"e", b"b")
    gaps.fill([b"z", b"f", b"k"])
    assert (gaps.behind(b"a"), gaps.behind(b"c")) == (b"f", b"e")
    gaps.fill([b"a"])
    assert gaps.behind(b"a") == b"a"


def test_what_was_seen_before_a_write_is_not_learned() -> None:
    gaps = Gaps()
    version = gaps.version
    gaps.fill([b"b"])
    gaps.learn(b"a", b"m", version)
    assert gaps.behind(b"a") == b"a"


def test_gaps_are_few() -> None:
    gaps = Gaps()
    for number in range(1000):
        gaps.learn(b"%d" % number, b"x", gaps.version)
    assert sum(gaps.behind(b"%d" % number) == b"x" for number in range(1000)) <= 16
