"""Random schemas that a state can have, and values of them, as strategies of hypothesis."""

import datetime

from hypothesis import strategies as st
from pyspark.sql import types

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
# Far from the ends of Python's calendar and from hours that a time zone skips or has twice.
_moments = st.datetimes(datetime.datetime(1980, 1, 1), datetime.datetime(2030, 1, 1)).map(
    lambda moment: moment.replace(hour=12)
)
LEAVES: list[tuple[types.DataType, st.SearchStrategy]] = [
    (types.BooleanType(), st.booleans()),
    (types.ByteType(), st.integers(-(2**7), 2**7 - 1)),
    (types.ShortType(), st.integers(-(2**15), 2**15 - 1)),
    (types.IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    (types.LongType(), st.integers(-(2**63), 2**63 - 1)),
    (types.FloatType(), st.floats(width=32, allow_nan=False)),
    (types.DoubleType(), st.floats(allow_nan=False)),
    (types.StringType(), text),
    (types.CharType(5), text),
    (types.VarcharType(5), text),
    (types.BinaryType(), st.binary(max_size=5)),
    (types.DecimalType(20, 3), st.decimals(-(10**16), 10**16, places=3)),
    (types.DecimalType(38, 0), st.decimals(-(10**38) + 1, 10**38 - 1, places=0)),
    (types.DateType(), st.dates()),
    (types.TimestampType(), _moments),
    (types.TimestampNTZType(), st.datetimes()),
    (types.DayTimeIntervalType(), st.timedeltas(datetime.timedelta(-999), datetime.timedelta(999))),
    (types.TimeType(), st.times()),
]
NOTHING: tuple[types.DataType, st.SearchStrategy] = (types.NullType(), st.none())


def names_of(columns: int) -> st.SearchStrategy[list[str]]:
    """Names of columns, some of which are made of others, as the path to a column within a column is."""
    names = st.sampled_from(["f", "g", "f_g", "g_f", "f_g_f"])
    return st.lists(names, min_size=columns, max_size=columns, unique=True)


@st.composite
def typed(draw, depth=2):
    """A Spark type and a strategy for its values, as PySpark returns them from a state."""
    kind = draw(st.integers(0, 5 if depth else 2))
    if kind <= 2:
        return draw(st.sampled_from([*LEAVES, NOTHING]))
    if kind == 3:
        element, values = draw(typed(depth=depth - 1))
        return types.ArrayType(element), st.lists(st.none() | values, max_size=3)
    if kind == 4:
        key, keys = draw(st.sampled_from(LEAVES))
        value, values = draw(typed(depth=depth - 1))
        return types.MapType(key, value), st.dictionaries(keys, st.none() | values, max_size=3)
    fields = draw(st.lists(typed(depth=depth - 1), min_size=1, max_size=3))
    names = draw(names_of(len(fields)))
    schema = types.StructType(
        [types.StructField(name, dtype) for name, (dtype, _) in zip(names, fields, strict=True)]
    )
    row = types.Row(*names)
    return schema, st.tuples(*(st.none() | values for _, values in fields)).map(lambda items: row(*items))


@st.composite
def schemas_with_rows(draw, min_size=1):
    """A schema and some rows of it."""
    # More than eight fields: a second byte of nulls.
    fields = draw(st.lists(typed(), min_size=1, max_size=4) | st.just([LEAVES[4], LEAVES[7]] * 5))
    schema = types.StructType([types.StructField(f"c{at}", dtype) for at, (dtype, _) in enumerate(fields)])
    values = st.tuples(*(st.none() | value for _, value in fields))
    return schema, draw(st.lists(values, min_size=min_size, max_size=5))


def arrow_ready(value, dtype):
    """A value as ``pa.array`` takes it, where that is not how PySpark has it."""
    if value is None:
        return None
    if isinstance(dtype, types.TimestampType):
        # PySpark's naive timestamps are in the local time zone, Arrow's are in UTC.
        return value.astimezone(datetime.UTC)
    if isinstance(dtype, types.TimeType):
        return value
    if isinstance(dtype, types.ArrayType):
        return [arrow_ready(item, dtype.elementType) for item in value]
    if isinstance(dtype, types.MapType):
        return [
            (arrow_ready(key, dtype.keyType), arrow_ready(item, dtype.valueType))
            for key, item in value.items()
        ]
    if isinstance(dtype, types.StructType):
        return {
            field.name: arrow_ready(item, field.dataType)
            for field, item in zip(dtype.fields, value, strict=True)
        }
    return value
