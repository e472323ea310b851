"""Writers: from records to the files of any format."""

from yolo.data.writers.convert import Converted, convert
from yolo.data.writers.plan import Options

__all__ = ["Converted", "Options", "convert"]
