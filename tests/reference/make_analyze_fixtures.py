#!/usr/bin/env python3
"""Reference values for tests/analyze, from numpy, scipy and scikit-learn.

    python tests/reference/make_analyze_fixtures.py > tests/analyze/reference_values.h

The data are made by the same integer recurrence here and in tests/analyze/reference_data.h, so only
results are stored.
"""
import numpy as np
import scipy.stats
import sklearn
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

MASK = (1 << 64) - 1


class Lcg:
    def __init__(self, seed):
        self.state = seed

    def __call__(self):  # a multiple of 2^-24 in [-0.5, 0.5)
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) & MASK
        return (self.state >> 40) / 2.0**24 - 0.5


T, K, WINDOWS, GROUPS = 1200, 6, 24, 40


def make_data():
    draw = Lcg(2603)
    x = np.zeros((T, K), dtype=np.float32)
    delta = np.zeros(T, dtype=np.float32)
    group = np.zeros(T, dtype=int)
    for t in range(T):
        for j in range(K):
            x[t, j] = draw() * (j + 1)
        x[t, 5] = 1.0 if x[t, 5] > 1 else 0.0
        group[t] = int((draw() + 0.5) * GROUPS)
        effect = ((group[t] * 7) % 11) / 11.0 - 0.5
        tail = (draw() + 0.5) ** 8
        delta[t] = (0.6 * effect + 0.8 * abs(float(x[t, 1])) - 0.3 * float(x[t, 5])
                    + 2.0 * tail + draw() - 0.5)
    window = np.arange(T) // (T // WINDOWS)
    return x, delta, group, window


def emit(name, values):
    values = np.asarray(values, dtype=np.float64).ravel()
    if values.size == 1:
        print(f"inline constexpr double k{name} = {values[0]:.15e};")
        return
    print(f"inline constexpr double k{name}[] = {{")
    for i in range(0, values.size, 4):
        print("    " + " ".join(f"{v:.15e}," for v in values[i:i + 4]))
    print("};")


def random_effects(group, y):
    """Method of moments of a one-way analysis of variance with unequal groups."""
    ids, n = np.unique(group, return_counts=True)
    means = np.array([y[group == g].mean() for g in ids])
    f, _ = scipy.stats.f_oneway(*[y[group == g] for g in ids])
    within = sum(((y[group == g] - m) ** 2).sum() for g, m in zip(ids, means)) / (len(y) - len(ids))
    size = (len(y) - (n**2).sum() / len(y)) / (len(ids) - 1)
    between = max(0.0, (f * within - within) / size)
    effect = n / (n + within / between) * (means - y.mean())
    return within, between, dict(zip(ids, effect))


def main():
    x, delta, group, window = make_data()
    y = delta.astype(np.float64)
    half = T // 2
    print("// Made by tests/reference/make_analyze_fixtures.py with "
          f"numpy {np.__version__}, scipy {scipy.__version__}, scikit-learn {sklearn.__version__}.")
    print("#pragma once\n\nnamespace halflin::reference {\n")

    emit("DeltaSkewKurtosis", [scipy.stats.skew(y), scipy.stats.kurtosis(y), y.std(), y.mean()])
    q = [0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999]
    emit("DeltaQuantiles", np.quantile(y, q))
    harm = np.sort(np.maximum(y, 0))[::-1]
    emit("WorstShares", [harm[: int(T * p)].sum() / harm.sum() for p in (0.01, 0.05, 0.1)])

    within, between, effect = random_effects(group[:half], y[:half])
    emit("RandomEffects", [within, between, effect[3], effect[17]])
    prediction = np.array([y[:half].mean() + effect.get(g, 0.0) for g in group[half:]])
    sst = ((y[half:] - y[:half].mean()) ** 2).sum()
    emit("GroupR2", 1 - ((y[half:] - prediction) ** 2).sum() / sst)

    # Ridge on standardised features, penalty in units of rows; chosen on the last fifth.
    wide = x.astype(np.float64)
    split = half // 5 * 4
    scores = {}
    for penalty in (1e-3, 1e-2, 1e-1, 1, 10, 100):
        scaler = StandardScaler().fit(wide[:split])
        model = Ridge(alpha=penalty * split).fit(scaler.transform(wide[:split]), y[:split])
        scores[penalty] = ((y[split:half] - model.predict(scaler.transform(wide[split:half]))) ** 2).sum()
    best = min(scores, key=scores.get)
    scaler = StandardScaler().fit(wide[:half])
    model = Ridge(alpha=best * half).fit(scaler.transform(wide[:half]), y[:half])
    emit("RidgePenalty", best)
    emit("RidgeWeights", model.coef_ / scaler.scale_)
    prediction = model.predict(scaler.transform(wide[half:]))
    emit("RidgeR2", 1 - ((y[half:] - prediction) ** 2).sum() / sst)

    forest = RandomForestRegressor(n_estimators=300, max_depth=8, min_samples_leaf=20,
                                   max_features=0.5, random_state=0).fit(x[:half], y[:half])
    prediction = forest.predict(x[half:])
    emit("ForestR2", 1 - ((y[half:] - prediction) ** 2).sum() / sst)

    pca = PCA(3, svd_solver="full").fit(x.astype(np.float64))
    emit("PcaExplained", pca.explained_variance_ratio_.sum())
    z = pca.transform(x.astype(np.float64))
    kmeans = KMeans(5, n_init=50, random_state=0).fit(z)
    emit("KMeansInertia", kmeans.inertia_)

    emit("Pearson", scipy.stats.pearsonr(x[:, 5].astype(np.float64), y)[0])
    labels = (y <= np.median(y)).astype(int)
    emit("Aucs", [roc_auc_score(labels, x[:, 5]), roc_auc_score(labels, -x[:, 1])])
    rng = np.random.default_rng(0)
    differences, correlations = [], []
    rows = [np.flatnonzero(window == w) for w in range(WINDOWS)]
    for _ in range(4000):
        drawn = np.concatenate([rows[w] for w in rng.integers(0, WINDOWS, WINDOWS)])
        differences.append(roc_auc_score(labels[drawn], x[drawn, 5])
                           - roc_auc_score(labels[drawn], -x[drawn, 1]))
        correlations.append(np.corrcoef(x[drawn, 5], y[drawn])[0, 1])
    emit("AucDifferenceInterval", np.quantile(differences, [0.025, 0.975]))
    emit("PearsonInterval", np.quantile(correlations, [0.025, 0.975]))

    # Two halves of the rows as two corpora: correlation of the groups' means.
    means = [np.array([y[s][group[s] == g].mean() for g in range(GROUPS)
                       if min((group[:half] == g).sum(), (group[half:] == g).sum()) >= 10])
             for s in (slice(0, half), slice(half, T))]
    emit("GroupCorrelation", scipy.stats.pearsonr(*means)[0])
    emit("GroupsShared", len(means[0]))
    print("\n}  // namespace halflin::reference")


main()
