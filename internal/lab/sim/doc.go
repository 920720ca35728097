// Package sim evaluates routing policies by a discrete-event simulation of a fleet of model servers
// behind the real [endpick.Router].
//
// Every server is an [engine.Engine]; the router, its prefix index, predictor and leases are those
// of production, on a virtual clock. A run is a pure function of its [Config] and seed:
// simultaneous events are handled in a fixed order (notices, arrivals, reports, engines
// by index), and nothing reads the wall clock. Runs share nothing, so run as many at once as there
// are cores.
//
// An index of names:
//
//   - [Config], [Run], [Report]: one policy on one workload; [Experiment] makes a Config
//   - [Events]: what engines report about their caches
//   - [Sharing]: what several routers tell each other about their requests
//   - [Workload], [Source], [Request]: work as data or as code
//   - [Conversations], [Arrivals], [Length]: generated workloads; [Scenario] has the papers'
//     ones; [Paced], [Pace]: their rate and end
//   - [Agents]: coding agents; [Sessions]: other programs that wait for answers
//   - [Mix], [Merge]: SLO classes, several workloads at once
//   - [Trace], [Record], [ReadTrace]: recorded workloads
//   - [Fit], [Replay], [Assess]: a hardware profile from a recording, and how good it is
package sim
