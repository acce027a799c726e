"""Many steps of the exact simulator in one launch, for devices that Triton knows.

One program takes one seed through the steps. The normals come from Philox, whose counter says which
coordinate, step and seed they are for: they do not depend on how the work is cut into launches.
"""

from __future__ import annotations

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]

# The last word of the counter keeps uses apart. It is never 0, as in torch's own draws with a seed.
_COORDINATE = tl.constexpr(1)
_SAMPLE = tl.constexpr(2)
_LABEL = tl.constexpr(3)
# A program holds so many coordinates in registers; more go through memory, block by block.
LARGEST = 16_384


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _pair(a, b):  # type: ignore[no-untyped-def]
    """Turn two words into two normals (Box and Muller).

    The angle is one of an eighth of a turn to both sides, where short series do; two bits that it
    does not use mirror the point about the diagonal and the origin, which makes it uniform.
    """
    share = a.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    # A fast log may be above 0 next to 1.
    radius = tl.sqrt(tl.maximum(-2.0 * tl.log(share), 0.0))
    radius = tl.where((b >> 31) != 0, -radius, radius)
    turn = (b & 0x3FFFFFFF).to(tl.float32) * 1.4629180792671596e-09 - 0.7853981633974483
    s = turn * turn
    sine = 1.0 + s * (-1.0 / 6 + s * (1.0 / 120 + s * (-1.0 / 5040 + s * (1.0 / 362880))))
    cosine = 1.0 + s * (-1.0 / 2 + s * (1.0 / 24 + s * (-1.0 / 720 + s * (1.0 / 40320))))
    x, y = radius * cosine, radius * (turn * sine)
    mirrored = ((b >> 30) & 1) != 0
    return tl.where(mirrored, y, x), tl.where(mirrored, x, y)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _words(key, place, step, seed, use):  # type: ignore[no-untyped-def]
    """Return four random words for every place."""
    zero = place & 0
    return tl.philox(key, place, zero + step, zero + seed, zero + use)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _normals(key, place, step, seed, use):  # type: ignore[no-untyped-def]
    """Return four standard normals for every place."""
    a, b, c, d = _words(key, place, step, seed, use)
    n0, n1 = _pair(a, b)
    n2, n3 = _pair(c, d)
    return n0, n1, n2, n3


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _inverse(value):  # type: ignore[no-untyped-def]
    """Return 1/v, and 0 where v is 0."""
    return tl.where(value > 0, 1.0 / tl.where(value > 0, value, 1.0), 0.0)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _dot(a0, a1, a2, a3, b0, b1, b2, b3):  # type: ignore[no-untyped-def]
    return tl.sum(a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3, axis=0).to(tl.float64)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _load(pointer, place, dim, QUARTER: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load four quarters of a block of coordinates, zeros beyond the last."""
    return (
        tl.load(pointer + place, mask=place < dim, other=0.0),
        tl.load(pointer + place + QUARTER, mask=place + QUARTER < dim, other=0.0),
        tl.load(pointer + place + 2 * QUARTER, mask=place + 2 * QUARTER < dim, other=0.0),
        tl.load(pointer + place + 3 * QUARTER, mask=place + 3 * QUARTER < dim, other=0.0),
    )


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _store(pointer, place, dim, v0, v1, v2, v3, QUARTER: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(pointer + place, v0, mask=place < dim)
    tl.store(pointer + place + QUARTER, v1, mask=place + QUARTER < dim)
    tl.store(pointer + place + 2 * QUARTER, v2, mask=place + 2 * QUARTER < dim)
    tl.store(pointer + place + 3 * QUARTER, v3, mask=place + 3 * QUARTER < dim)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _draw(key, place, step, seed, dim, QUARTER: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the normals of a block of coordinates, in quarters, zeros beyond the last."""
    # A block has a quarter as many counters as coordinates.
    counter = place % QUARTER + (place // BLOCK) * QUARTER
    n0, n1, n2, n3 = _normals(key, counter.to(tl.uint32), step, seed, _COORDINATE)
    return (
        tl.where(place < dim, n0, 0.0),
        tl.where(place + QUARTER < dim, n1, 0.0),
        tl.where(place + 2 * QUARTER < dim, n2, 0.0),
        tl.where(place + 3 * QUARTER < dim, n3, 0.0),
    )


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _linear(excess, cross, chi, normal, rate, batch, sigma):  # type: ignore[no-untyped-def]
    """Return what a step of linear regression multiplies δ, z and θ° by: see `LinearLaw`."""
    distance = tl.sqrt(excess)
    inverse = _inverse(distance)
    noise = tl.sqrt((excess + sigma * sigma) * chi) / batch
    along = (distance * chi + sigma * normal * tl.sqrt(chi)) / batch
    pull = (along - noise * cross * inverse) * inverse
    return 1.0 - rate * pull, -rate * noise, 0.0 * noise


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _sigmoid(x):  # type: ignore[no-untyped-def]
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _residuals(first, second, chance, own_first, own_second, label, valid, SOFT: tl.constexpr):  # type: ignore[no-untyped-def]
    target = _sigmoid(first * label)
    if not SOFT:
        target = tl.where(chance < target, 1.0, 0.0)
    return tl.where(valid, _sigmoid(first * own_first + second * own_second) - target, 0.0)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _logistic(  # type: ignore[no-untyped-def]
    excess,
    alignment,
    cross,
    cross_truth,
    normal,
    rate,
    batch,
    truth,
    total,
    scale,
    sigma,
    key,
    step,
    seed,
    SOFT: tl.constexpr,
    SAMPLES: tl.constexpr,
):
    """The same for logistic regression, from two normals a sample: see `ModelLaw`."""
    inverse = _inverse(truth)
    error_along = alignment * inverse
    beside_sq = excess - error_along * error_along
    beside = tl.sqrt(tl.where(beside_sq > 1e-5 * excess, beside_sq, 0.0))
    beside_inverse = _inverse(beside)
    along = error_along + scale * truth
    shown = truth * _inverse(total)
    hidden = sigma * _inverse(total)
    rest = tl.sqrt(along * hidden * along * hidden + beside * beside)
    turn = along * hidden * _inverse(rest)
    keep = tl.where(rest > 0, beside * _inverse(rest), 1.0)
    own_first = (along * shown).to(tl.float32)
    own_second = rest.to(tl.float32)
    label = total.to(tl.float32)
    square = tl.zeros((SAMPLES,), tl.float32)
    on_first = tl.zeros((SAMPLES,), tl.float32)
    on_second = tl.zeros((SAMPLES,), tl.float32)
    count = batch.to(tl.int32)
    for begin in range(0, (count + 1) // 2, SAMPLES):
        pair = begin + tl.arange(0, SAMPLES)
        place = pair.to(tl.uint32)
        n0, n1, n2, n3 = _normals(key, place, step, seed, _SAMPLE)
        chance0 = n0
        chance1 = n0
        if not SOFT:
            a, b, _, _ = _words(key, place, step, seed, _LABEL)
            chance0 = (a >> 8).to(tl.float32) * 5.9604644775390625e-08
            chance1 = (b >> 8).to(tl.float32) * 5.9604644775390625e-08
        r0 = _residuals(n0, n1, chance0, own_first, own_second, label, 2 * pair < count, SOFT)
        r1 = _residuals(n2, n3, chance1, own_first, own_second, label, 2 * pair + 1 < count, SOFT)
        square += r0 * r0 + r1 * r1
        on_first += r0 * n0 + r1 * n2
        on_second += r0 * n1 + r1 * n3
    norm = tl.sqrt(tl.sum(square, axis=0).to(tl.float64))
    first = tl.sum(on_first, axis=0).to(tl.float64)
    second = tl.sum(on_second, axis=0).to(tl.float64)
    third = norm * normal
    inside = (shown * first + hidden * (turn * second + keep * third)) / batch
    across = (keep * second - turn * third) / batch
    noise = norm / batch
    skew = error_along * inverse * beside_inverse
    weight = inside - noise * cross_truth * inverse
    weight_across = across - noise * (beside_inverse * cross - skew * cross_truth)
    pull = weight_across * beside_inverse
    push = weight * inverse - weight_across * skew
    return 1.0 - rate * pull, -rate * noise, -rate * push


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _factors(  # type: ignore[no-untyped-def]
    excess,
    alignment,
    cross,
    cross_truth,
    rates,
    plan,
    chi,
    normal,
    k,
    seeds,
    seed,
    lanes,
    lane,
    step,
    key,
    LOGISTIC: tl.constexpr,
    SOFT: tl.constexpr,
    SAMPLES: tl.constexpr,
):
    """Return what step k multiplies δ, z and θ° by."""
    rate = tl.load(rates + k * lanes + lane)
    batch = tl.load(plan + 5 * k)
    sigma = tl.load(plan + 5 * k + 1)
    own = tl.load(normal + k * seeds + seed)
    if LOGISTIC:
        truth = tl.load(plan + 5 * k + 2)
        total = tl.load(plan + 5 * k + 3)
        scale = tl.load(plan + 5 * k + 4)
        keep, noise, push = _logistic(
            excess,
            alignment,
            cross,
            cross_truth,
            own,
            rate,
            batch,
            truth,
            total,
            scale,
            sigma,
            key,
            step,
            seed,
            SOFT,
            SAMPLES,
        )
    else:
        square = tl.load(chi + k * seeds + seed)
        keep, noise, push = _linear(excess, cross, square, own, rate, batch, sigma)
    return keep.to(tl.float32), noise.to(tl.float32), push.to(tl.float32)


@triton.jit(do_not_specialize=["first", "steps", "stride"])  # type: ignore[untyped-decorator, unused-ignore]
def resident(  # type: ignore[no-untyped-def]
    error,
    moves,
    truths,
    moved,
    rates,
    plan,
    chi,
    normal,
    excesses,
    alignments,
    keys,
    first,
    steps,
    stride,
    dim,
    LOGISTIC: tl.constexpr,
    SOFT: tl.constexpr,
    SAMPLES: tl.constexpr,
    QUARTER: tl.constexpr,
):
    """Take one seed of one lane through the steps, with δ in registers.

    `error` is δ of shape (lanes, seeds, dim); rows k of `moves` and `truths` (`stride` apart, 0
    for one row that serves all) are what the target moves before step `first` + k, and θ° at it;
    `moved` says whether it does. `rates` is of shape (steps, lanes), `plan` (steps, 5) holds batch
    size, σ, √Var <x, θ°>, the same with the link's noise, and c. `chi` and `normal` are of shape
    (steps, seeds), and so are the outputs for every lane: δᵀδ and δᵀθ° before the step.
    """
    seed, lane = tl.program_id(0), tl.program_id(1)
    seeds, lanes = tl.num_programs(0), tl.num_programs(1)
    key = tl.load(keys)
    place = tl.arange(0, QUARTER)
    own = error + (lane * seeds + seed).to(tl.int64) * dim
    e0, e1, e2, e3 = _load(own, place, dim, QUARTER)
    for k in range(steps):
        if tl.load(moved + k) != 0:
            m0, m1, m2, m3 = _load(moves + k * stride, place, dim, QUARTER)
            e0 -= m0
            e1 -= m1
            e2 -= m2
            e3 -= m3
        z0, z1, z2, z3 = _draw(key, place, first + k, seed, dim, QUARTER, 4 * QUARTER)
        excess = _dot(e0, e1, e2, e3, e0, e1, e2, e3)
        cross = _dot(e0, e1, e2, e3, z0, z1, z2, z3)
        out = (k * lanes + lane).to(tl.int64) * seeds + seed
        tl.store(excesses + out, excess)
        alignment = excess
        cross_truth = cross
        if LOGISTIC:
            t0, t1, t2, t3 = _load(truths + k * stride, place, dim, QUARTER)
            alignment = _dot(e0, e1, e2, e3, t0, t1, t2, t3)
            cross_truth = _dot(z0, z1, z2, z3, t0, t1, t2, t3)
            tl.store(alignments + out, alignment)
        keep, noise, push = _factors(
            excess,
            alignment,
            cross,
            cross_truth,
            rates,
            plan,
            chi,
            normal,
            k,
            seeds,
            seed,
            lanes,
            lane,
            first + k,
            key,
            LOGISTIC,
            SOFT,
            SAMPLES,
        )
        e0 = keep * e0 + noise * z0
        e1 = keep * e1 + noise * z1
        e2 = keep * e2 + noise * z2
        e3 = keep * e3 + noise * z3
        if LOGISTIC:
            t0, t1, t2, t3 = _load(truths + k * stride, place, dim, QUARTER)
            e0 += push * t0
            e1 += push * t1
            e2 += push * t2
            e3 += push * t3
    _store(own, place, dim, e0, e1, e2, e3, QUARTER)


@triton.jit(do_not_specialize=["first", "steps", "stride"])  # type: ignore[untyped-decorator, unused-ignore]
def swept(  # type: ignore[no-untyped-def]
    error,
    moves,
    truths,
    moved,
    rates,
    plan,
    chi,
    normal,
    excesses,
    alignments,
    keys,
    first,
    steps,
    stride,
    dim,
    LOGISTIC: tl.constexpr,
    SOFT: tl.constexpr,
    SAMPLES: tl.constexpr,
    QUARTER: tl.constexpr,
):
    """The same as `resident` with δ in memory, of any dimension.

    One sweep over the blocks ends a step and begins the next: the normals of the step that ends are
    drawn again, which is cheaper than to keep them.
    """
    seed, lane = tl.program_id(0), tl.program_id(1)
    seeds, lanes = tl.num_programs(0), tl.num_programs(1)
    key = tl.load(keys)
    own = error + (lane * seeds + seed).to(tl.int64) * dim
    keep = tl.full((), 1.0, tl.float32)
    noise = tl.full((), 0.0, tl.float32)
    push = tl.full((), 0.0, tl.float32)
    for k in range(steps + 1):
        excess = tl.full((), 0.0, tl.float64)
        cross = excess
        alignment = excess
        cross_truth = excess
        for begin in range(0, dim, 4 * QUARTER):
            place = begin + tl.arange(0, QUARTER)
            e0, e1, e2, e3 = _load(own, place, dim, QUARTER)
            if k > 0:
                z0, z1, z2, z3 = _draw(key, place, first + k - 1, seed, dim, QUARTER, 4 * QUARTER)
                e0 = keep * e0 + noise * z0
                e1 = keep * e1 + noise * z1
                e2 = keep * e2 + noise * z2
                e3 = keep * e3 + noise * z3
                if LOGISTIC:
                    before = truths + (k - 1) * stride
                    t0, t1, t2, t3 = _load(before, place, dim, QUARTER)
                    e0 += push * t0
                    e1 += push * t1
                    e2 += push * t2
                    e3 += push * t3
            if k < steps:
                if tl.load(moved + k) != 0:
                    m0, m1, m2, m3 = _load(moves + k * stride, place, dim, QUARTER)
                    e0 -= m0
                    e1 -= m1
                    e2 -= m2
                    e3 -= m3
                n0, n1, n2, n3 = _draw(key, place, first + k, seed, dim, QUARTER, 4 * QUARTER)
                excess += _dot(e0, e1, e2, e3, e0, e1, e2, e3)
                cross += _dot(e0, e1, e2, e3, n0, n1, n2, n3)
                if LOGISTIC:
                    u0, u1, u2, u3 = _load(truths + k * stride, place, dim, QUARTER)
                    alignment += _dot(e0, e1, e2, e3, u0, u1, u2, u3)
                    cross_truth += _dot(n0, n1, n2, n3, u0, u1, u2, u3)
            _store(own, place, dim, e0, e1, e2, e3, QUARTER)
        if k < steps:
            out = (k * lanes + lane).to(tl.int64) * seeds + seed
            tl.store(excesses + out, excess)
            if LOGISTIC:
                tl.store(alignments + out, alignment)
            keep, noise, push = _factors(
                excess,
                alignment,
                cross,
                cross_truth,
                rates,
                plan,
                chi,
                normal,
                k,
                seeds,
                seed,
                lanes,
                lane,
                first + k,
                key,
                LOGISTIC,
                SOFT,
                SAMPLES,
            )
        tl.debug_barrier()  # the next sweep reads what other threads may have written
