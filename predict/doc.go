// Package predict predicts latencies.
package predict
