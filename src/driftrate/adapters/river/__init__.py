"""River: an optimizer whose rate follows the shift, one sample at a time."""

from driftrate.errors import MissingDependency

try:
    import river  # noqa: F401
except ImportError as error:
    raise MissingDependency(
        "driftrate.river needs River: pip install 'driftrate[river]'"
    ) from error
