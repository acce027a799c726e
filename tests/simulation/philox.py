"""The numbers of the fused kernel in plain NumPy: Philox 4x32-10, and normals from its words."""

import numpy as np

COORDINATE, SAMPLE, LABEL = 1, 2, 3
_MASK = np.uint64(0xFFFFFFFF)


def words(key, counter):
    """Return four arrays of words for counters of four words each (Salmon et al., 2011)."""
    c = [np.asarray(word, dtype=np.uint64) for word in np.broadcast_arrays(*counter)]
    k0, k1 = np.uint64(key & 0xFFFFFFFF), np.uint64(key >> 32)
    for _ in range(10):
        low, high = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(high >> 32) ^ c[1] ^ k0, high & _MASK, (low >> 32) ^ c[3] ^ k1, low & _MASK]
        k0 = (k0 + np.uint64(0x9E3779B9)) & _MASK
        k1 = (k1 + np.uint64(0xBB67AE85)) & _MASK
    return c


def pair(a, b):
    """Return two normals from two words, by the angle that the kernel's bits mean."""
    radius = np.sqrt(-2 * np.log((a + 0.5) / 2**32))
    turn = (b & np.uint64(0x3FFFFFFF)) / 2**30 * np.pi / 2 - np.pi / 4
    radius = np.where(b >> np.uint64(31), -radius, radius)
    x, y = radius * np.cos(turn), radius * np.sin(turn)
    mirrored = (b >> np.uint64(30)) & np.uint64(1)
    return np.where(mirrored, y, x), np.where(mirrored, x, y)


def four(key, counter):
    """Return four normals for every counter."""
    a, b, c, d = words(key, counter)
    return (*pair(a, b), *pair(c, d))


def coordinates(key, step, seeds, dim, quarter):
    """Return z of a step, of shape (seeds, dim): a block's counters are a quarter of its places."""
    count = -(-dim // (4 * quarter))
    place = np.arange(count * quarter)
    out = np.stack(four(key, (place, step, np.arange(seeds)[:, None], COORDINATE)), axis=1)
    blocks = out.reshape(seeds, 4, count, quarter)
    return np.moveaxis(blocks, 1, 2).reshape(seeds, -1)[:, :dim]


def samples(key, step, seeds, batch):
    """Return the two normals of every sample, of shape (2, seeds, batch)."""
    pairs = np.arange((batch + 1) // 2)
    n = four(key, (pairs, step, np.arange(seeds)[:, None], SAMPLE))
    first, second = (np.stack(two, axis=-1).reshape(seeds, -1) for two in (n[::2], n[1::2]))
    return np.stack([first, second])[..., :batch]


def chances(key, step, seeds, batch):
    """Return the uniforms of drawn labels, of shape (seeds, batch)."""
    pairs = np.arange((batch + 1) // 2)
    a, b, _, _ = words(key, (pairs, step, np.arange(seeds)[:, None], LABEL))
    both = np.stack([a, b], axis=-1).reshape(seeds, -1)[:, :batch]
    return (both >> np.uint64(8)) / 2**24
