package delay

// The amounts that time depends on. A latency is their sum, each multiplied by a
// coefficient of the kind of server, in milliseconds.
const (
	requests  = iota // that begin: their own step, as far as computing their tokens does not hide it
	tokens           // prompt tokens to be computed
	attention        // pairs of such a token and an earlier one: attention
	steps            // decoding steps
	batches          // requests that decode, summed over the steps
	contexts         // tokens that steps read
	blocked          // milliseconds until there is room for another request
	parts
)

type amounts [parts]float64

// proportions are assumed before there are measurements: each coefficient
// relative to that of a prompt token. They are ratios of operations and bytes
// common to transformers, not times: reading the weights for a step, of which a
// request begins with one, takes as long as some hundred prompt tokens, and attention
// costs as much as the rest at some ten thousand tokens.
var proportions = amounts{
	requests: 300, tokens: 1, attention: 1.0 / 30_000, steps: 200, batches: 0.5, contexts: 1.0 / 1000,
}

// scaled returns the proportions for a given time per prompt token.
func scaled(token float64) amounts {
	a := proportions
	for i := range a {
		a[i] *= token
	}
	a[blocked] = 1
	return a
}

// linear is a model of time: a sum of positive parts, so that more of
// anything never takes less time. It is fitted by least squares on relative
// errors. Old labels fade, and what labels don't determine stays at its prior.
type linear struct {
	each     amounts // coefficients in milliseconds
	products [parts][parts]float64
	answers  amounts
	labels   float64 // number of labels, as they fade
}

// leastError is a time in milliseconds below which errors are not reduced
// further: nothing is measured more precisely, and short times must not outweigh
// the rest.
const leastError = 1

// of returns the time that the amounts take.
func (l *linear) of(x *amounts) (ms float64) {
	for i, v := range x {
		ms += v * l.each[i]
	}
	return ms
}

// label learns from a measured time. Errors are relative to the expected time;
// a time of more than three times that is an outlier.
func (l *linear) label(x *amounts, ms float64, prior *amounts) {
	expected := max(l.of(x), leastError)
	weight := 1 / expected
	if ms > 3*expected {
		weight *= 3 * expected / ms
	}
	weight *= weight
	const keep = 1 - 1.0/memory
	l.labels = l.labels*keep + 1
	for i, v := range x {
		for j := range i + 1 {
			p := l.products[i][j]*keep + weight*v*x[j]
			l.products[i][j], l.products[j][i] = p, p
		}
		l.answers[i] = l.answers[i]*keep + weight*v*ms
	}
	l.solve(prior)
}

// doubt is one over the factor by which a prior may be wrong: being off by ten
// counts as much as one label that is off by all of its time.
const doubt = 0.1

// solve takes some steps of coordinate descent towards the least squares,
// starting at the previous solution.
func (l *linear) solve(prior *amounts) {
	for range 5 {
		for i := range parts {
			trust := doubt * doubt / (prior[i] * prior[i])
			rest := l.answers[i] + trust*prior[i]
			for j, p := range l.products[i] {
				if j != i {
					rest -= p * l.each[j]
				}
			}
			l.each[i] = max(rest/(l.products[i][i]+trust), doubt*doubt*prior[i]) // at 0, a match would be worth nothing
		}
	}
}
