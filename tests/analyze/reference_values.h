// Made by tests/reference/make_analyze_fixtures.py with numpy 2.4.6, scipy 1.17.1,
// scikit-learn 1.9.1.
#pragma once

namespace halflin::reference {

inline constexpr double kDeltaSkewKurtosis[] = {
    8.034710944761485e-01,
    8.335479925397644e-01,
    6.215753446549684e-01,
    1.254919776307361e-02,
};
inline constexpr double kDeltaQuantiles[] = {
    -1.364122367262840e+00, -1.078732498884201e+00, -8.630893856287003e-01, -7.030926465988159e-01,
    -4.359199032187462e-01, -5.321132391691208e-02, 3.476149886846542e-01,  8.088186204433452e-01,
    1.233384913206100e+00,  1.872196617126465e+00,  2.221490550041197e+00,
};
inline constexpr double kWorstShares[] = {
    8.361761548360257e-02,
    3.300352713663587e-01,
    5.334560721039695e-01,
};
inline constexpr double kRandomEffects[] = {
    3.615992346866294e-01,
    2.205133861576345e-02,
    1.543874777705570e-01,
    9.627187535614475e-02,
};
inline constexpr double kGroupR2 = 4.478314044097009e-02;
inline constexpr double kRidgePenalty = 1.000000000000000e+00;
inline constexpr double kRidgeWeights[] = {
    -1.646430295927567e-02, 5.160388005361882e-03,  1.364520955372887e-03,
    1.503088388232588e-03,  -9.647340392867037e-03, -1.335142833545885e-01,
};
inline constexpr double kRidgeR2 = 3.660944143703149e-02;
inline constexpr double kForestR2 = 1.381486912276962e-01;
inline constexpr double kPcaExplained = 8.672570963560677e-01;
inline constexpr double kKMeansInertia = 1.695653894253701e+03;
inline constexpr double kPearson = -2.182979185525225e-01;
inline constexpr double kAucs[] = {
    6.008333333333334e-01,
    4.841694444444445e-01,
};
inline constexpr double kAucDifferenceInterval[] = {
    7.043667548649710e-02,
    1.607025331225640e-01,
};
inline constexpr double kPearsonInterval[] = {
    -2.817921878841421e-01,
    -1.526598700647037e-01,
};
inline constexpr double kGroupCorrelation = 5.705663822415928e-01;
inline constexpr double kGroupsShared = 3.700000000000000e+01;

}  // namespace halflin::reference
