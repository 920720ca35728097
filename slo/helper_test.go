package slo_test

import "math"

var nan = math.NaN()
