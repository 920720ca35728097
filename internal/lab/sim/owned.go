package sim

// Owned is a workload whose requests are all one tenant's.
type Owned struct {
	Workload Workload
	Tenant   string
}

// Start implements [Workload].
func (o Owned) Start(seed uint64) (Source, error) {
	s, err := o.Workload.Start(seed)
	return &ownedSource{s, o.Tenant}, err
}

type ownedSource struct {
	Source
	tenant string
}

// Take implements [Source].
func (s *ownedSource) Take() Request {
	r := s.Source.Take()
	r.Tenant = s.tenant
	return r
}
