from .operators.arrow_processor import ArrowInput as ArrowInput
from .operators.arrow_processor import ArrowProcessor as ArrowProcessor
from .operators.arrow_processor import ArrowResult as ArrowResult
from .operators.dead_letters import DeadLetters as DeadLetters
from .reader.dead_rows import dead_letter_rows as dead_letter_rows
from .reader.reading import read_state as read_state
from .reader.reading import register as register
from .writer.savepoint_writer import SavepointWriter as SavepointWriter
