// Package boost is a regressor for positive targets: boosted oblivious trees over a linear prior,
// small enough to be fitted inside a running service and fast enough to be asked for every request.
//
//   - [Fit] makes a [Model] of a training set, in some tens of milliseconds for ten thousand rows.
//   - [Model.Predict] predicts a batch of rows, eight at a time, without allocating.
//   - [Model.Refit] fits a model to other rows and keeps its tests, at a tenth of the cost.
//
// Errors are relative: trees fit the logarithm of target over prior. An absent feature is NaN,
// which differs from every value. The same rows in the same order make the same model, to the last
// bit, on the same kind of machine.
//
// The trees are those of "CatBoost: unbiased boosting with categorical features" (2018), section 3:
// all nodes of a level share one test, so that a leaf is found by six comparisons without a branch.
//
// Package predict learns the latencies of a router's endpoints with it; this package knows nothing
// of routing.
package boost
