package sim

// agentKind describes the contexts of one program, in tokens.
type agentKind struct {
	name string
	// shared is the length of the system prompt and the tools.
	shared int
	// appended is what a step adds to the context before the answer, and output the answer.
	appended, output quantiles
	// window is the length at which a context is compacted, by session: some have a
	// smaller one than the program's largest. summary is what a compacted context
	// continues with, after the shared part.
	window, summary quantiles
	// reach is the length from which on the next human message starts a new context.
	reach quantiles
	// rewrites is the probability that a human message follows a shortened
	// context: reasoning is dropped, or a step is undone.
	rewrites float64
}

// agentKinds are Claude Code and Codex, each with half of the sessions. Appended and
// output tokens have the published medians and the published mean growth of 1.7 to
// 1.8 thousand per step; window, summary, reach and rewrites are fitted to the
// published medians and 99th percentiles of the prefix, to the shares of steps on
// which the context grows, and to the compactions.
var agentKinds = [...]agentKind{
	{
		name: "Claude Code", shared: 18_000,
		appended: agentAppended(857), output: agentOutput(252),
		window:  newQuantiles(0, 180_000, 0.18, 190_000, 0.181, 970_000, 1, 995_000),
		summary: newQuantiles(0, 3000, 0.5, 8000, 1, 20_000),
		reach:   newQuantiles(0, 60_000, 0.5, 200_000, 0.9, 900_000, 1, 2_000_000),
	},
	{
		name: "Codex", shared: 12_000,
		appended: agentAppended(886), output: agentOutput(184),
		window:   newQuantiles(0, 230_000, 1, 242_000),
		summary:  newQuantiles(0, 30_000, 0.5, 60_000, 1, 90_000), // human messages remain
		reach:    newQuantiles(0, 200_000, 0.5, 400_000, 1, 4_000_000),
		rewrites: 0.28,
	},
}

func agentAppended(median float64) quantiles {
	return newQuantiles(0, 100, 0.5, median, 0.9, 2100, 0.99, 4500, 1, 12_000)
}

func agentOutput(median float64) quantiles {
	return newQuantiles(0, 20, 0.5, median, 0.9, 1600, 0.99, 5000, 1, 16_000)
}

// What the kinds have in common. Times are in seconds. Medians, 90th and 99th
// percentiles of times, and of a session's requests, are the published ones, and the
// largest value is chosen so that the mean is.
var (
	agentProject  = newQuantiles(0, 1000, 0.5, 4000, 1, 8000) // tokens of a project's instructions
	agentRewrite  = newQuantiles(0, 1000, 1, 8000)            // tokens dropped by a rewrite
	agentRequests = newQuantiles(0, 1, 0.585, 2, 0.9, 12, 0.99, 137, 1, 400)
	// Steps of a request, without sub-agents', fitted to the published durations of
	// requests and to the steps of a session.
	agentSteps    = newQuantiles(0, 1, 0.5, 3.4, 0.9, 9.2, 0.99, 44, 1, 680)
	agentAlone    = newQuantiles(0, 1, 0.5, 5, 0.75, 10, 0.9, 70, 1, 330)
	agentTool     = newQuantiles(0, 0.01, 0.5, 0.3, 0.9, 13.6, 0.99, 205, 1, 2950)
	agentHuman    = newQuantiles(0, 2, 0.5, 84, 0.9, 1236, 0.99, 50_040, 1, 320_000)
	agentGenerate = newQuantiles(0, 0.5, 0.5, 5.7, 0.9, 22.2, 0.99, 84, 1, 780)
)

const (
	// agentHabit is how similar two consecutive human pauses are: the correlation of
	// the underlying normal numbers. Without it nine in ten sessions would last up
	// to 13 hours, not 6.
	agentHabit = 0.8
	// A tool call longer than agentTask may be a task for sub-agents. A step with
	// the following pause takes agentStep, which gives the number of steps in a
	// task.
	agentTask       = 60.0
	agentTaskChance = 0.15
	agentStep       = 13.2 + 18.4
	// agentSessionSteps is the mean number of steps of a session, including sub-agents'.
	agentSessionSteps = 82.5
)
