from .coordinator.conformance import SCHEMA as SCHEMA
from .coordinator.conformance import BatchConformance as BatchConformance
from .coordinator.conformance import Row as Row
from .coordinator.conformance import SinkConformance as SinkConformance
from .coordinator.conformance import SinkPipeline as SinkPipeline
from .coordinator.conformance import SinkTarget as SinkTarget
from .coordinator.testing import PipelineTester as PipelineTester
from .state.testing import OperatorTester as OperatorTester
