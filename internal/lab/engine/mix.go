package engine

// Mix is one step of splitmix64, a bijection: every bit of x changes every bit of the
// result with a probability of about one half. The lab's artificial prompts, names and
// draws are made of it, so that a seed gives the same bytes everywhere.
func Mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
