"""The paper's statements as functions: the SDE, its moments, the control problem, the bounds."""

from driftrate.theory.bounds import (
    DiameterBound,
    LossBound,
    PathBound,
    convex_lower,
    convex_upper,
    convex_upper_diameter,
    lower_weight,
    nonconvex_upper,
    upper_weight,
)
from driftrate.theory.closed_form import NoShift, no_shift, switch_time, tail, tail_constant
from driftrate.theory.control import Value, optimal_policy, value_function
from driftrate.theory.moments import (
    Moments,
    discrete_moments,
    gradient_second_moment,
    moment_ode,
    upper_process,
)
from driftrate.theory.pursuit import (
    PursuitBound,
    PursuitPath,
    pursuit_bound,
    pursuit_ceiling,
    pursuit_path,
)
from driftrate.theory.sde import apply_root, brownian, coarsen, sde_paths

__all__ = [
    "DiameterBound",
    "LossBound",
    "Moments",
    "NoShift",
    "PathBound",
    "PursuitBound",
    "PursuitPath",
    "Value",
    "apply_root",
    "brownian",
    "coarsen",
    "convex_lower",
    "convex_upper",
    "convex_upper_diameter",
    "discrete_moments",
    "gradient_second_moment",
    "lower_weight",
    "moment_ode",
    "no_shift",
    "nonconvex_upper",
    "optimal_policy",
    "pursuit_bound",
    "pursuit_ceiling",
    "pursuit_path",
    "sde_paths",
    "switch_time",
    "tail",
    "tail_constant",
    "upper_process",
    "upper_weight",
    "value_function",
]
