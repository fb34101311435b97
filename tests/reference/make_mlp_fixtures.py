#!/usr/bin/env python3
"""Reference values for tests/mlp and tests/measure, from numpy, scipy and scikit-learn.

    python tests/reference/make_mlp_fixtures.py > tests/mlp/reference_values.h

The data are made by the same integer recurrence here and in tests/mlp/reference_data.h, so only
results are stored.
"""
import numpy as np
import scipy.stats
import sklearn
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

MASK = (1 << 64) - 1


class Lcg:
    def __init__(self, seed):
        self.state = seed

    def __call__(self):  # a multiple of 2^-24 in [-0.5, 0.5)
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) & MASK
        return (self.state >> 40) / 2.0**24 - 0.5


T, D, DY = 240, 7, 3


def make_data():
    draw = Lcg(12345)
    x = np.zeros((T, D))
    y = np.zeros((T, DY))
    delta = np.zeros(T)
    for t in range(T):
        u = [draw() for _ in range(D)]
        for j in range(D):
            x[t, j] = u[j] * (j + 1) + 0.75 * u[j - 1] + 3.0 * j
        x[t, 5] = 2.5
        y[t, 0] = x[t, 0] * x[t, 1] + 0.25 * x[t, 3] + 100.0
        y[t, 1] = abs(u[2]) * 4.0 - x[t, 6]
        y[t, 2] = u[3] + 0.5 * draw()
        delta[t] = 0.25 * u[1] - 0.5 * u[4] + draw()
    return x.astype(np.float32), y.astype(np.float32), delta.astype(np.float32)


def emit(name, values):
    values = np.asarray(values, dtype=np.float64).ravel()
    if values.size == 1:
        print(f"inline constexpr double k{name} = {values[0]:.15e};")
        return
    print(f"inline constexpr double k{name}[] = {{")
    for i in range(0, values.size, 4):
        print("    " + " ".join(f"{v:.15e}," for v in values[i:i + 4]))
    print("};")


def svd_ridge(x, y, lam):
    mx, my = x.mean(0), y.mean(0)
    u, s, vt = np.linalg.svd(x - mx, full_matrices=False)
    d = np.zeros_like(s)
    used = s > 1e-10 * s[0]
    d[used] = s[used] / (s[used]**2 + lam)
    w = (vt.T * d) @ u.T @ (y - my)
    return w, my - mx @ w


def r2(x, y, w, b):
    return 1 - ((y - x @ w - b)**2).sum() / ((y - y.mean(0))**2).sum()


def low_rank(x, y, lam, rank):
    """Reduced-rank ridge by a singular value decomposition of the augmented fit."""
    mx, my = x.mean(0), y.mean(0)
    w, _ = svd_ridge(x, y, lam)
    augmented = np.vstack([x - mx, np.sqrt(lam) * np.eye(x.shape[1])])
    _, _, vt = np.linalg.svd(augmented @ w, full_matrices=False)
    w = w @ vt[:rank].T @ vt[:rank]
    return w, my - mx @ w


def logistic(z, label):
    return LogisticRegression(C=1.0, tol=1e-14, max_iter=10000, solver="newton-cholesky").fit(z, label)


def rotl(v, k):
    return ((v << k) | (v >> (64 - k))) & MASK


class Xoshiro:
    def __init__(self, seed, purpose):
        h = 0xcbf29ce484222325
        for c in purpose.encode():
            h = ((h ^ c) * 0x100000001b3) & MASK
        self.mix = seed
        self.mix = self.splitmix() ^ h
        self.s = [self.splitmix() for _ in range(4)]

    def splitmix(self):
        self.mix = (self.mix + 0x9e3779b97f4a7c15) & MASK
        z = self.mix
        z = ((z ^ (z >> 30)) * 0xbf58476d1ce4e5b9) & MASK
        z = ((z ^ (z >> 27)) * 0x94d049bb133111eb) & MASK
        return z ^ (z >> 31)

    def next(self):
        s = self.s
        result = (rotl((s[1] * 5) & MASK, 7) * 9) & MASK
        t = (s[1] << 17) & MASK
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = rotl(s[3], 45)
        return result


def main():
    x32, y32, delta = make_data()
    x, y = x32.astype(np.float64), y32.astype(np.float64)
    print("// Made by tests/reference/make_mlp_fixtures.py with "
          f"numpy {np.__version__}, scipy {scipy.__version__}, scikit-learn {sklearn.__version__}.")
    print("#pragma once\n\n#include <cstdint>\n\nnamespace halflin::reference {\n\n// clang-format off")
    half = T // 2
    for name, lam in (("Paper", 0.01), ("Strong", 50.0), ("None", 0.0)):
        w, b = svd_ridge(x[:half], y[:half], lam)
        emit(f"Ridge{name}Weight", w)
        emit(f"Ridge{name}Bias", b)
        emit(f"Ridge{name}R2", r2(x[:half], y[:half], w, b))
        emit(f"Ridge{name}HeldOutR2", r2(x[half:], y[half:], w, b))
    w, b = low_rank(x, y, 5.0, 2)
    emit("LowRankWeight", w)
    emit("LowRankBias", b)

    emit("DeltaMedian", np.median(delta.astype(np.float64)))
    emit("DeltaMean", delta.astype(np.float64).mean())
    emit("DeltaSd", delta.astype(np.float64).std())
    emit("DeltaPercentBeneficial", (delta < 0).mean() * 100)
    emit("DeltaQuartile", np.percentile(delta.astype(np.float64), 25))

    label = (delta <= np.median(delta.astype(np.float64))).astype(int)
    scaler = StandardScaler().fit(x)
    z = scaler.transform(x)
    fit = logistic(z, label)
    emit("LogisticWeight", fit.coef_)
    emit("LogisticIntercept", fit.intercept_)
    scores = fit.decision_function(z)
    emit("LinearGateScores", scores[:8])
    for b_size in (1, 3):
        pca = PCA(n_components=min(2 * b_size, 32, D)).fit(z)
        fit = logistic(pca.transform(z), label)
        emit(f"B{b_size}GateScores", fit.decision_function(pca.transform(z))[:8])
        emit(f"B{b_size}Accuracy", fit.score(pca.transform(z), label))

    w, b = svd_ridge(x, y, 0.01)
    energy = ((y - x @ w - b)**2).sum(1)
    harm = Ridge(alpha=1e-3 * T).fit(z, np.log(energy))
    emit("HarmScores", -harm.predict(z)[:8])

    ties = np.round(scores * 4)  # many equal scores
    emit("AucTies", roc_auc_score(label, ties))
    emit("Auc", roc_auc_score(label, scores))

    draw = Lcg(777)
    base = np.array([300 + 60 * draw() for _ in range(40)])
    extra = np.array([1.0 + 12 * (draw() + 0.5)**4 - 1.5 for _ in range(40)])
    count = np.array([100.0 + (i % 3) for i in range(40)])

    def change(e, n, axis=-1):
        return 100 * np.expm1(e.sum(axis=axis) / n.sum(axis=axis))

    for method in ("percentile", "BCa"):
        result = scipy.stats.bootstrap((extra, count), change, paired=True, vectorized=True, n_resamples=400000,
                                       batch=20000, method=method, rng=np.random.default_rng(5))
        emit(f"Bootstrap{method.capitalize()}",
             [change(extra, count), result.confidence_interval.low, result.confidence_interval.high])
    emit("NormalQuantiles", scipy.stats.norm.ppf([1e-12, 1e-4, 0.025, 0.3, 0.5, 0.9, 0.999999]))

    random = Xoshiro(42, "test")
    print("inline constexpr uint64_t kXoshiro[] = {" + ", ".join(f"{random.next()}u" for _ in range(6)) + "};")
    print("// clang-format on\n\n}  // namespace halflin::reference")


if __name__ == "__main__":
    main()
