package modelserver

// maxStored is how many responses a server remembers.
const maxStored = 1000

// stored has the conversations of the latest responses. The zero value is
// empty.
type stored struct {
	turns map[string][]turn // by the ID of the response
	order []string          // IDs, oldest first
}

func (s *Server) keep(id string, turns []turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stored.turns == nil {
		s.stored.turns = map[string][]turn{}
	}
	if len(s.stored.order) == maxStored {
		delete(s.stored.turns, s.stored.order[0])
		s.stored.order = s.stored.order[1:]
	}
	s.stored.turns[id] = turns
	s.stored.order = append(s.stored.order, id)
}

func (s *Server) recall(id string) ([]turn, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	turns, ok := s.stored.turns[id]
	return turns, ok
}
