"""Networks in the race: what they are, the protocols under which they shift, and the loop."""

from driftrate.race.networks.phases import Phase, Protocol
from driftrate.race.networks.play import Played, play
from driftrate.race.networks.suite import PROTOCOLS, protocol

__all__ = ["PROTOCOLS", "Phase", "Played", "Protocol", "play", "protocol"]
