package scorer

import "github.com/endpick/endpick"

// Classes are those that a Hotspot has.
type Classes struct{ Tracked, Alarmed, Hot int }

// ClassesOf counts them.
func ClassesOf(f endpick.Filter) Classes {
	h := f.(*hotspot)
	h.mu.Lock()
	defer h.mu.Unlock()
	c := Classes{Tracked: len(h.classes), Hot: int(h.hot.Load())}
	for i := range h.classes {
		if h.classes[i].alarmed {
			c.Alarmed++
		}
	}
	return c
}
