"""What running aggregates of a stream are made of: its rows, their key, windows and time to live."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import attrs

from ..state.aggregation.batch_aggregation import Define
from ..state.aggregation.windowing import Scope, aggregation_in, key_columns
from ..state.aggregation.windows import windowed_stream
from ..state.operators.dataframe import check_input, check_streaming
from ..state.operators.time_mode import TimeMode
from .operator_arguments import KeyedStream, Lifetime, Windows, event_time_lag


@attrs.frozen
class Aggregating:
    """Running aggregates that are about to be made."""

    keyed: KeyedStream
    """The stream, with a row for each window that a row is in, and the key of the state."""
    scope: Scope
    mode: TimeMode
    """By which clock batches without rows run: windows close in them."""
    lag_ms: int
    """By how many milliseconds the watermark of the stream lags behind that of its query."""
    define: Define


def aggregating(
    stream: KeyedStream, columns: Mapping[str, tuple[str, str]], lifetime: Lifetime, windows: Windows
) -> Aggregating:
    """Return what running aggregates of a stream are made of.

    Args:
        stream: the stream.
        columns: the input column and the function, by name of the output column.
        lifetime: how long a key lives.
        windows: the windows of event time; a key is one of them with the key columns of the stream.

    Raises:
        DefinitionError: an argument cannot be used.
    """
    df, window, mode, lag = stream.df, None, TimeMode.NONE, 0
    check_streaming(df)
    # A window alone is a key, too.
    is_alone = windows.window is not None and isinstance(stream.key, list | tuple) and not stream.key
    if not is_alone:
        check_input(df, stream.key, argument="by")
    if windows.window is not None:
        mode, lag = TimeMode.EVENT, event_time_lag(df, "window")
        df, window = windowed_stream(df, windows.window, stream.key)
    elif lifetime.by_event_time:
        # Nothing is output when a key goes, so that no batch need run for it.
        lag = event_time_lag(df, "ttl_time")
    keyed = attrs.evolve(stream, df=df, key=key_columns(stream.key, window))
    if is_alone:
        check_input(df, keyed.key, argument="by")
    define = partial(
        aggregation_in,
        window,
        df.schema,
        stream.key,
        columns,
        uid=stream.uid,
        output_mode=windows.output_mode,
        ttl=lifetime.checked(stream.df),
    )
    return Aggregating(keyed, Scope.of(window), mode, lag, define)
