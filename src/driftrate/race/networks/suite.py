"""The protocols of the suite, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from driftrate.errors import ConfigError
from driftrate.race.networks import digits, texts
from driftrate.race.networks.flipping import flipping
from driftrate.race.networks.phases import Protocol

# Real streams, Parquet files in the folder `streams` of the data, target y. The first five and the
# seeds below HELD_OUT_SEED of what is drawn are for development; the rest is for the figures.
DEVELOPMENT = ("elec2", "covertype60k", "bike_hourly", "keystroke", "airquality_co")
HELD_OUT = ("noaa_weather", "beijing_pm25", "metro_traffic", "usenet1", "powersupply")
HELD_OUT_SEED = 1000
_SHORT = ("keystroke", "usenet1")
# Networks of 300 and 150 on digits, of 128 and 128 on the others.
PROTOCOLS: dict[str, Callable[[], Protocol]] = {
    "pixels_2500": partial(digits.permuted, "pixels", 2500, 20),
    "labels_2500": partial(digits.permuted, "labels", 2500, 20),
    "pixels_10000": partial(digits.permuted, "pixels", 10_000, 6),
    "labels_10000": partial(digits.permuted, "labels", 10_000, 6),
    "flipping": flipping,
    **{f"rest_{what}": partial(digits.rest, what) for what in digits.CHANGES},
    "plasticity": digits.plasticity,
    "stationary": digits.stationary,
    # On request: a download, and a transformer.
    **{f"full_rest_{what}": partial(digits.rest, what, full=True) for what in digits.CHANGES},
    "texts": texts.texts,
    "texts_development": partial(texts.texts, languages=texts.DEVELOPMENT),
}

# The fifteen streams that a mean is taken over, by kind.
GROUPS: dict[str, tuple[str, ...]] = {
    "short": _SHORT,
    "tabular": tuple(name for name in (*DEVELOPMENT, *HELD_OUT) if name not in _SHORT),
    "digits": ("pixels_2500", "labels_2500", "pixels_10000", "labels_10000"),
    "flipping": ("flipping",),
}


def specifications() -> list[str]:
    """Return the streams of the suite as a race takes them; neither texts nor all digits."""
    asked = ("texts", "full")
    drawn = [f"networks:{name}" for name in PROTOCOLS if not name.startswith(asked)]
    real = digits.folder() / "streams"
    return [*drawn, *(str(real / f"{name}.parquet") for name in (*DEVELOPMENT, *HELD_OUT))]


def protocol(name: str) -> Protocol:
    """Return the protocol of a name.

    Raises:
        ConfigError: There is none of that name.
        DataError: Its data are not there.

    Example:
        >>> protocol("flipping").rows
        50000
    """
    if name not in PROTOCOLS:
        raise ConfigError(f"protocol must be one of {', '.join(PROTOCOLS)}, got {name!r}")
    return PROTOCOLS[name]()
