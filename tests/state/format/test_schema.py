"""Schemas are resolved on the driver and travel to the tasks."""

import pytest
from pyspark.sql.types import IntegerType, LongType, StructType

from chandy.state.errors import DefinitionError
from chandy.state.format.schema import Schemas, from_json, to_json

COUNT = StructType().add("count", LongType())


def test_a_schema_survives_its_json():
    schema = StructType().add("a", LongType(), nullable=False).add("b", COUNT)
    assert from_json(to_json(schema)) == schema


def test_ddl_that_the_driver_resolved_is_known_to_a_task_without_a_parser():
    driver = Schemas(parse={"count long": COUNT}.__getitem__)
    assert driver.resolve("count long", "state 'n'") == COUNT
    assert Schemas(parse=None, known=driver.known).resolve("count long", "state 'n'") == COUNT


def test_ddl_that_the_driver_has_not_seen_is_refused_in_a_task():
    with pytest.raises(DefinitionError, match="not seen on the driver"):
        Schemas(parse=None).resolve("count long", "state 'n'")


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (IntegerType(), "expected a struct"),
        (StructType(), "at least one field"),
        (StructType().add("a", LongType()).add("a", LongType()), "more than one field named 'a'"),
    ],
)
def test_a_schema_that_is_no_struct_of_distinct_fields_is_refused(schema, says):
    with pytest.raises(DefinitionError, match=says):
        Schemas().resolve(schema, "the output")


def test_ddl_without_column_names_is_refused():
    with pytest.raises(DefinitionError, match="expected a struct"):
        Schemas(parse=lambda text: IntegerType()).resolve("int", "the output")
