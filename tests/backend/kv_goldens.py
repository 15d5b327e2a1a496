#!/usr/bin/env python3
"""Writes tests/backend/data/kv_goldens.txt: codebooks, and codes of pages, as an implementation that shares nothing
with src/backend/kv_*.c finds them (numpy 2.4.6, double precision). test_kv_quant.c compares.

  signs S1 S2         the published vectors of 128, bit i of byte i/8 set where number i is -1
  edges F e…          between the levels of the positive half
  values F v…         the positive half of the integer codebook
  loss F a b          E[(x - x^)^2] of x ~ N(0,1) with an unbiased scale: integer levels, float levels
  page D F K|V S h    FNV-1a of the indices [token][dim] of a page of numbers from seed S
  sums D F K|V S m s  sums of its means (keys) and of its scales
"""

import math
import sys

import numpy as np

FORMS = (3, 4, 5, 6, 8)
DIMS = (16, 64, 80, 96, 112, 128, 160, 192, 256, 512, 576)
FAR = 60.0
# of numbers none of which lies so close to an edge that single precision takes it for the other side
SEEDS = {(512, True): 1, (512, False): 2, (576, True): 5}

# ---------------------------------------------------------------------------------------------------- codebooks


def density(x):
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def weight(a, b):
    return (math.erfc(a / math.sqrt(2)) - math.erfc(b / math.sqrt(2))) / 2


def mean(a, b):
    return (density(a) - density(b)) / weight(a, b)


def lloyd(levels):
    """Edges of the Lloyd-Max quantiser's positive half, which begins at 0; levels are the cells' means."""
    c = [4.0 * (i + 0.5) / levels for i in range(levels)]
    while True:
        e = [0.0] + [(a + b) / 2 for a, b in zip(c, c[1:])] + [FAR]
        new = [mean(a, b) for a, b in zip(e, e[1:])]
        if max(abs(a - b) for a, b in zip(new, c)) < 1e-12:
            return e
        c = new


def cut(edges):
    """Each cell cut at its own Lloyd point."""
    out = []
    for a, b in zip(edges, edges[1:]):
        s = mean(a, b)
        for _ in range(1000):
            s = (mean(a, s) + mean(s, b)) / 2
        out += [a, s]
    return out + [FAR]


def loss(edges, levels):
    xc = sum(2 * v * (density(a) - density(b)) for a, b, v in zip(edges, edges[1:], levels))
    cc = sum(2 * v * v * weight(a, b) for a, b, v in zip(edges, edges[1:], levels))
    return cc / (xc * xc) - 1


def climb(start, score):
    """From integers to neighbouring ones as long as that loses less."""
    best, at = score(start), start
    while True:
        tries = [at[:i] + [at[i] + step] + at[i + 1 :] for i in range(len(at)) for step in (-1, 1)]
        tries = [t for t in tries if t[0] >= 0 and all(a < b for a, b in zip(t, t[1:]))]
        scores = [score(t) for t in tries]
        if min(scores) >= best - 1e-12:
            return best, at
        best = min(scores)
        at = tries[scores.index(best)]


def levels_for(edges, most):
    """The integers whose levels, value + 1/2, suit the edges best."""
    c = [mean(a, b) for a, b in zip(edges, edges[1:])]

    def score(v):
        return loss(edges, [x + 0.5 for x in v]) if v[-1] <= most else 1

    starts = ([round(x * top / c[-1] - 0.5) for x in c] for top in np.arange(most / 2, most + 0.5, 0.05))
    starts = [v for v in starts if v[0] >= 0 and all(a < b for a, b in zip(v, v[1:]))]
    return climb(min(starts, key=score), score)[1]


def midway(values, step):
    return [0.0] + [(a + b + 1) / 2 * step for a, b in zip(values, values[1:])] + [FAR]


FREE = {
    5: ([2, 7, 12, 17, 22, 27, 33, 39, 45, 51, 58, 66, 75, 86, 100, 121], 0.026804212851565958),
    6: (
        [
            0,
            2,
            4,
            6,
            8,
            10,
            12,
            14,
            16,
            18,
            20,
            22,
            24,
            26,
            28,
            30,
            32,
            34,
            37,
            40,
            43,
            46,
            49,
            52,
            55,
            59,
            63,
            68,
            73,
            80,
            89,
            103,
        ],
        0.03598091234968406,
    ),
}


def codebooks():
    """form: edges, integers, edges of the same number of float levels"""
    three = lloyd(4)
    four = cut(three)
    books = {3: (three, levels_for(three, 63), three), 4: (four, levels_for(four, 63), four)}
    for bits, (values, step) in FREE.items():  # found by the same search over grids; no neighbour may be better

        def score(v):
            return loss(midway(v, step), [x + 0.5 for x in v])

        assert climb(values, score)[1] == values
        books[bits] = (midway(values, step), values, lloyd(1 << bits - 1))
    return books


# ---------------------------------------------------------------------------------------------------- rotation


def legendre(q):
    squares = {i * i % q for i in range(1, q)}
    return np.array([0] + [1 if i in squares else -1 for i in range(1, q)])


def paley(order):
    q = 13 if order == 28 else order - 1
    chi = legendre(q)
    jacobsthal = np.array([[chi[(j - i) % q] for j in range(q)] for i in range(q)])
    if order == 28:
        border = np.zeros((14, 14), int)
        border[0, 1:] = border[1:, 0] = 1
        border[1:, 1:] = jacobsthal
        return np.kron(border, [[1, 1], [1, -1]]) + np.kron(np.eye(14, dtype=int), [[1, -1], [-1, -1]])
    skew = np.zeros((order, order), int)
    skew[0, 1:], skew[1:, 0] = 1, -1
    skew[1:, 1:] = jacobsthal
    return skew + np.eye(order, dtype=int)


def rotation(d):
    core, rest = np.ones((1, 1)), d
    while rest & (rest - 1):
        order = next(n for n in (12, 20, 28) if rest % n == 0)
        core, rest = np.kron(paley(order), core), rest // order
    while rest > 1:
        core, rest = np.kron([[1, 1], [1, -1]], core), rest // 2
    s = np.random.default_rng(42).choice([-1, 1], 2 * d)
    return s[d:, None] * core * s[None, :d] / math.sqrt(d)


# ---------------------------------------------------------------------------------------------------- pages


def numbers(seed, d, key):
    """[128][d]: uniform numbers, of which some dims are larger and, in keys, some have an offset."""
    state, out = seed, np.empty((128, d), np.float32)
    for t in range(128):
        for i in range(d):
            state = (state + 0x9E3779B97F4A7C15) % 2**64
            z = state
            z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
            z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
            u = np.float32(((z ^ (z >> 31)) >> 11) * 2.0**-52 - 1.0)
            out[t, i] = u * np.float32(1 + i % 5) + np.float32(4 if key and i % 3 == 0 else 0)
    return out


def code(y, bits, key, books):
    """y [128][d], rotated: indices, means, scales [groups][128]"""
    d = y.shape[1]
    g = next(d // n for n in range(1, d) if d % n == 0 and d // n <= 128 and d // n % 16 == 0)
    means = y.mean(0).astype(np.float16) if key else np.zeros(d)
    z = (y - means.astype(float)).reshape(128, d // g, g)
    half = 1 << bits - 1
    if bits == 8:
        below = np.minimum(np.floor(np.abs(z) * (half / np.abs(z).max(-1, keepdims=True))), half - 1).astype(int)
        level = below + 0.5
    else:
        edges, values, _ = books[bits]
        u = np.abs(z) * (math.sqrt(g) / np.linalg.norm(z, axis=-1, keepdims=True))
        below = np.searchsorted(edges[1:-1], u, side="left")
        level = np.array(values)[below] + 0.5
    scales = ((z * z).sum(-1) / (np.abs(z) * level).sum(-1)).astype(np.float16)
    index = np.where(z > 0, half + below, half - 1 - below)
    return index.reshape(128, d), means, scales


def fnv(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return h


def main():
    books = codebooks()
    print("# written by tests/backend/kv_goldens.py")
    s = np.random.default_rng(42).choice([-1, 1], 256) < 0
    print("signs", *(np.packbits(half, bitorder="little").tobytes().hex() for half in (s[:128], s[128:])))
    for bits, (edges, values, free) in books.items():
        print("edges", bits, *(f"{e:.7f}" for e in edges[1:-1]))
        print("values", bits, *values)
        float_levels = [mean(a, b) for a, b in zip(free, free[1:])]
        print("loss", bits, f"{loss(edges, [v + 0.5 for v in values]):.9f} {loss(free, float_levels):.9f}")
    for d in DIMS:
        r = rotation(d)
        for key in (True, False):
            seed = SEEDS.get((d, key), 1000 * d + key)
            y = numbers(seed, d, key).astype(float) @ r.T
            for bits in FORMS:
                if key and bits == 3:
                    continue
                index, means, scales = code(y, bits, key, books)
                case = f"{d} {bits} {'K' if key else 'V'} {seed}"
                print("page", case, f"{fnv(index.astype(np.uint8).tobytes()):016x}")
                print("sums", case, f"{means.astype(float).sum():.6f} {scales.astype(float).sum():.6f}")


if __name__ == "__main__":
    with open(sys.argv[1] if len(sys.argv) > 1 else "tests/backend/data/kv_goldens.txt", "w") as sys.stdout:
        main()
