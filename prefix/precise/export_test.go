package precise

import "github.com/endpick/endpick"

// Knows returns what is known of an endpoint as a whole.
func (x *Index) Knows(ref endpick.EndpointRef) Knowledge {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.knows(ref)
}

// Forget is one step of Reset.
func (f *Feed) Forget() (more bool) {
	f.index.mu.Lock()
	defer f.index.mu.Unlock()
	return f.step()
}
